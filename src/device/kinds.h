/*
 * kinds.h - the rows by name. Only device.c uses them; all other files get a row by its kind.
 */
#ifndef MS_DEVICE_KINDS_H
#define MS_DEVICE_KINDS_H

#include "device/device.h"

extern const ms__device_kind ms__device_cpu;
extern const ms__device_kind ms__device_cuda;

/* cuda_probe.c */
uint32_t ms__cuda_probe(ms_gpu *gpus, uint32_t most);

#endif
