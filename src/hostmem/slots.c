/*
 * Slots of a loaded library: the entries of its relocation table for another library's functions,
 * and their cells. install.c calls it. It does not decide on replacements; the exchange may run
 * inside free().
 */
#include "hostmem/slots.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <stdio.h>
#include <string.h>

#include "base/fault.h"
#include "base/os/map.h"

#if defined(__x86_64__)
enum { RELOCATION_CALL = R_X86_64_JUMP_SLOT, RELOCATION_ADDRESS = R_X86_64_GLOB_DAT };
#elif defined(__aarch64__)
enum { RELOCATION_CALL = R_AARCH64_JUMP_SLOT, RELOCATION_ADDRESS = R_AARCH64_GLOB_DAT };
#else
enum { RELOCATION_CALL = -1, RELOCATION_ADDRESS = -1 };
#endif

typedef struct relocations {
    const ElfW(Rela) * entries;
    size_t count;
} relocations;

/* The places of the cells, from the dynamic section. */
typedef struct dynamic_tables {
    const ElfW(Sym) * symbols;
    const char *strings;
    relocations calls; /* filled at the first call, or on load */
    relocations data;  /* filled at load */
} dynamic_tables;

const void *ms__got_slot_library(const char *name)
{
    if (ms__fault(MS_FAULT_DRIVER, NULL)) {
        return NULL;
    }
    /* Never closed: the cells are written again at uninstall. */
    void *handle = dlopen(name, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE);
    if (handle == NULL) {
        (void)dlerror();
    }
    return handle;
}

/* glibc relocates these addresses in place, musl does not. */
static const void *table_address(const struct link_map *map, ElfW(Addr) address)
{
    return (const void *)(address < map->l_addr ? map->l_addr + address : address);
}

static bool read_dynamic(const struct link_map *map, dynamic_tables *tables)
{
    ElfW(Xword) kind = DT_NULL;
    memset(tables, 0, sizeof *tables);
    for (const ElfW(Dyn) *entry = map->l_ld; entry->d_tag != DT_NULL; entry++) {
        switch (entry->d_tag) {
        case DT_SYMTAB:
            tables->symbols = table_address(map, entry->d_un.d_ptr);
            break;
        case DT_STRTAB:
            tables->strings = table_address(map, entry->d_un.d_ptr);
            break;
        case DT_JMPREL:
            tables->calls.entries = table_address(map, entry->d_un.d_ptr);
            break;
        case DT_PLTRELSZ:
            tables->calls.count = entry->d_un.d_val / sizeof(ElfW(Rela));
            break;
        case DT_PLTREL:
            kind = entry->d_un.d_val;
            break;
        case DT_RELA:
            tables->data.entries = table_address(map, entry->d_un.d_ptr);
            break;
        case DT_RELASZ:
            tables->data.count = entry->d_un.d_val / sizeof(ElfW(Rela));
            break;
        default:
            break;
        }
    }
    if (tables->calls.entries == NULL || kind != DT_RELA) {
        tables->calls.count = 0;
    }
    if (tables->data.entries == NULL) {
        tables->data.count = 0;
    }
    return tables->symbols != NULL && tables->strings != NULL;
}

/* The cell of an undefined symbol: a library's calls of its own definition use no slot. */
static ms__got_slot_cell *cell_in(const struct link_map *map, const dynamic_tables *tables, const relocations *list,
                                  int type, const char *symbol)
{
    for (size_t i = 0; i < list->count; i++) {
        const ElfW(Rela) *entry = &list->entries[i];
        if ((int)ELF64_R_TYPE(entry->r_info) != type) {
            continue;
        }
        const ElfW(Sym) *target = &tables->symbols[ELF64_R_SYM(entry->r_info)];
        if (target->st_shndx == SHN_UNDEF && strcmp(tables->strings + target->st_name, symbol) == 0) {
            return (ms__got_slot_cell *)(map->l_addr + entry->r_offset);
        }
    }
    return NULL;
}

/* Calls use the call slots; only a library built without them (-fno-plt) calls through the slots for
 * taking a function's address. */
static ms__got_slot_cell *find_cell(const struct link_map *map, const char *symbol)
{
    dynamic_tables tables;
    if (!read_dynamic(map, &tables)) {
        return NULL;
    }
    ms__got_slot_cell *cell = cell_in(map, &tables, &tables.calls, RELOCATION_CALL, symbol);
    return cell != NULL ? cell : cell_in(map, &tables, &tables.data, RELOCATION_ADDRESS, symbol);
}

/* ---- the library's segments --------------------------------------------- */

typedef struct segment_query {
    const struct link_map *map;
    ElfW(Addr) address;
    bool is_code;      /* out: the address lies in an executable segment */
    bool is_read_only; /* out: its page lies in the part that is read-only after relocation */
} segment_query;

static int ask_segments(struct dl_phdr_info *info, size_t size, void *context)
{
    segment_query *query = context;
    (void)size;
    if (info->dlpi_addr != query->map->l_addr || strcmp(info->dlpi_name, query->map->l_name) != 0) {
        return 0;
    }
    ElfW(Addr) page_mask = ~((ElfW(Addr))ms__page_bytes() - 1);
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *segment = &info->dlpi_phdr[i];
        ElfW(Addr) start = info->dlpi_addr + segment->p_vaddr;
        ElfW(Addr) end = start + segment->p_memsz;
        if (segment->p_type == PT_LOAD && (segment->p_flags & PF_X) != 0) {
            query->is_code |= query->address >= start && query->address < end;
        } else if (segment->p_type == PT_GNU_RELRO) {
            /* The linker protects whole pages only, rounded down at both ends. */
            query->is_read_only = query->address >= (start & page_mask) && query->address < (end & page_mask);
        }
    }
    return 1;
}

static segment_query segments_at(const struct link_map *map, uintptr_t address)
{
    segment_query query = {.map = map, .address = address};
    dl_iterate_phdr(ask_segments, &query);
    return query;
}

/* ---- checking and exchanging -------------------------------------------- */

static uintptr_t address_in(void *handle, const char *symbol)
{
    uintptr_t address = (uintptr_t)dlsym(handle, symbol);
    if (address == 0) {
        (void)dlerror();
    }
    return address;
}

/* The linker's answer may differ from dlsym()'s: in a program at fixed addresses the first definition
 * may be the program's stub. */
static bool is_expected(const char *symbol, uintptr_t value)
{
    if (value == 0) {
        return false;
    }
    if (value == address_in(RTLD_DEFAULT, symbol) || value == address_in(RTLD_NEXT, symbol)) {
        return true;
    }
    void *libc = dlopen("libc.so.6", RTLD_LAZY | RTLD_NOLOAD);
    if (libc == NULL) {
        (void)dlerror();
        return false;
    }
    bool is_libc = value == address_in(libc, symbol);
    (void)dlclose(libc);
    return is_libc;
}

static const char *owner_of(uintptr_t address)
{
    Dl_info info;
    return dladdr((void *)address, &info) != 0 && info.dli_fname != NULL ? info.dli_fname : "unknown code";
}

bool ms__got_slot_find(const void *library, const char *symbol, uintptr_t ours, ms__got_slot *slot,
                       char reason[MS__GOT_SLOT_REASON_MAX])
{
    const struct link_map *map = library;
    slot->cell = find_cell(map, symbol);
    if (slot->cell == NULL) {
        snprintf(reason, MS__GOT_SLOT_REASON_MAX, "%s does not call %s through a slot", map->l_name, symbol);
        return false;
    }
    slot->is_read_only = segments_at(map, (uintptr_t)slot->cell).is_read_only;
    slot->found = atomic_load_explicit(slot->cell, memory_order_acquire);
    if (slot->found == ours) {
        return true;
    }
    if (is_expected(symbol, slot->found)) {
        slot->real = slot->found;
        return true;
    }
    uintptr_t resolved = address_in(RTLD_DEFAULT, symbol);
    if (resolved != 0 && segments_at(map, slot->found).is_code) {
        slot->real = resolved;
        return true;
    }
    snprintf(reason, MS__GOT_SLOT_REASON_MAX, "the slot of %s in %s already leads to %s", symbol, map->l_name,
             owner_of(slot->found));
    return false;
}

static bool set_writable(const ms__got_slot *slot, bool writable)
{
    return ms__map_protect((void *)slot->cell, sizeof *slot->cell, writable, NULL) == MS_OK;
}

bool ms__got_slot_exchange(const ms__got_slot *slot, uintptr_t expected, uintptr_t desired)
{
    if (slot->is_read_only && !set_writable(slot, true)) {
        return false;
    }
    bool is_done = atomic_compare_exchange_strong(slot->cell, &expected, desired);
    if (slot->is_read_only) {
        /* A page left writable works too; it is only less hardened. */
        (void)set_writable(slot, false);
    }
    return is_done;
}

bool ms__got_slot_holds(const ms__got_slot *slot, uintptr_t address)
{
    return atomic_load_explicit(slot->cell, memory_order_relaxed) == address;
}
