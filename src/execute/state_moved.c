/* Which states leave the device if a plan moves a part of them; see memscale/optimizer_stream.h. */
#include "base/portion.h"
#include "base/units.h"
#include "execute/state_record.h"

static uint64_t state_bytes(const void *forms, size_t index)
{
    const ms_optimizer_form *form = &((const ms_optimizer_form *)forms)[index];
    uint64_t bytes = 0;
    for (int part = 0; part < MS_PART_COUNT; part++) {
        bytes = ms__add_sat(bytes, ms__record_part_bytes(form, (ms_optimizer_part)part, form->count));
    }
    return bytes;
}

void ms_optimizer_choose_moved(const ms_optimizer_form *forms, size_t count, uint64_t moved_bytes, uint8_t *moved)
{
    (void)ms__take_portion(forms, count, state_bytes, moved_bytes == 0 ? UINT64_MAX : moved_bytes, moved);
}
