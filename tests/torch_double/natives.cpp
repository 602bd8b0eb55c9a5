/*
 * Operators that make unfilled tensors or views, so they run nothing on a stream.
 */
#include <ATen/EmptyTensor.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include "internal.h"

namespace torch_double
{

namespace
{

using at::Tensor;
using c10::SymIntArrayRef;

c10::Device device_or_current(std::optional<c10::Device> device)
{
    return device.has_value() && device->has_index() ? *device : c10::Device(c10::kCUDA, current_device());
}

Tensor empty(SymIntArrayRef sizes, std::optional<c10::ScalarType> dtype, std::optional<c10::Layout>,
             std::optional<c10::Device> device, std::optional<bool>, std::optional<c10::MemoryFormat> format)
{
    c10::DeviceGuard guard(device_or_current(device));
    return Tensor(at::detail::empty_generic(C10_AS_INTARRAYREF_SLOW(sizes), &device_allocator(),
                                            c10::DispatchKeySet(c10::DispatchKey::CUDA), at::dtype_or_default(dtype),
                                            format));
}

Tensor empty_strided(SymIntArrayRef sizes, SymIntArrayRef strides, std::optional<c10::ScalarType> dtype,
                     std::optional<c10::Layout>, std::optional<c10::Device> device, std::optional<bool>)
{
    return empty_strided_on(device_or_current(device).index(), C10_AS_INTARRAYREF_SLOW(sizes),
                            C10_AS_INTARRAYREF_SLOW(strides), at::dtype_or_default(dtype));
}

const Tensor &resize(const Tensor &self, SymIntArrayRef sizes, std::optional<c10::MemoryFormat> format)
{
    resize_on_device(self, C10_AS_INTARRAYREF_SLOW(sizes), format);
    return self;
}

Tensor as_strided(const Tensor &self, SymIntArrayRef sizes, SymIntArrayRef strides, std::optional<c10::SymInt> offset)
{
    std::optional<int64_t> begin;
    if (offset.has_value()) {
        begin = offset->expect_int();
    }
    return at::native::as_strided_tensorimpl(self, C10_AS_INTARRAYREF_SLOW(sizes), C10_AS_INTARRAYREF_SLOW(strides),
                                             begin);
}

Tensor view(const Tensor &self, SymIntArrayRef sizes)
{
    return at::native::view(self, C10_AS_INTARRAYREF_SLOW(sizes));
}

Tensor reshape_alias(const Tensor &self, SymIntArrayRef sizes, SymIntArrayRef strides)
{
    return at::native::_reshape_alias(self, C10_AS_INTARRAYREF_SLOW(sizes), C10_AS_INTARRAYREF_SLOW(strides));
}

Tensor &set_part(Tensor &self, at::Storage source, c10::SymInt offset, SymIntArrayRef sizes, SymIntArrayRef strides)
{
    return at::native::set_storage_cpu_(self, std::move(source), offset.expect_int(), C10_AS_INTARRAYREF_SLOW(sizes),
                                        C10_AS_INTARRAYREF_SLOW(strides));
}

Tensor &set_storage(Tensor &self, at::Storage source)
{
    auto elements = static_cast<int64_t>(source.nbytes() / self.itemsize());
    return at::native::set_storage_cpu_(self, std::move(source), 0, {elements}, {1});
}

Tensor &set_nothing(Tensor &self)
{
    c10::DeviceGuard guard(self.device());
    at::Storage nothing(at::Storage::use_byte_size_t(), 0, device_allocator().allocate(0), &device_allocator(), true);
    return at::native::set_storage_cpu_(self, nothing, 0, {0}, {1});
}

void record_stream(Tensor &self, c10::Stream stream)
{
    device_allocator().recordStream(self.storage().data_ptr(), stream);
}

TORCH_LIBRARY_IMPL(aten, CUDA, library)
{
    library.impl("empty.memory_format", empty);
    library.impl("empty_strided", empty_strided);
    library.impl("resize_", resize);
    library.impl("as_strided", as_strided);
    library.impl("view", view);
    library.impl("_reshape_alias", reshape_alias);
    library.impl("unfold", TORCH_FN(at::native::unfold));
    library.impl("view_as_real", TORCH_FN(at::native::view_as_real));
    library.impl("view_as_complex", TORCH_FN(at::native::view_as_complex));
    library.impl("set_.source_Storage_storage_offset", set_part);
    library.impl("set_.source_Storage", set_storage);
    library.impl("set_.source_Tensor", TORCH_FN(at::native::set_tensor_));
    library.impl("set_", set_nothing);
    library.impl("record_stream", record_stream);
}

} // namespace

void resize_on_device(const Tensor &tensor, c10::IntArrayRef sizes, std::optional<c10::MemoryFormat> format)
{
    c10::DeviceGuard guard(tensor.device());
    size_t offset = static_cast<size_t>(tensor.storage_offset());
    size_t bytes = at::detail::computeStorageNbytesContiguous(sizes, tensor.itemsize(), offset);
    c10::StorageImpl *storage = tensor.storage().unsafeGetStorageImpl();
    if (c10::multiply_integers(sizes) > 0 && bytes > storage->nbytes()) {
        /* torch's own function would copy the contents on the host. */
        c10::DataPtr larger = device_allocator().allocate(bytes);
        device_allocator().copy_data(larger.get(), storage->data(), storage->nbytes());
        storage->set_data_ptr_noswap(std::move(larger));
        storage->set_nbytes(bytes);
    }
    at::native::resize_(tensor, sizes, format);
}

/* What resizing a storage to no bytes does: its memory goes back to the allocator. */
TORCH_DOUBLE_EXPORT void torch_double_empty_storage(void *storage)
{
    auto *emptied = static_cast<c10::StorageImpl *>(storage);
    emptied->set_data_ptr_noswap(c10::DataPtr(nullptr, emptied->device()));
    emptied->set_nbytes(0);
}

} // namespace torch_double
