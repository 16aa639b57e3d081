// SPDX-License-Identifier: Apache-2.0
#include "probe/array_view.h"

#include <cstddef>
#include <cstring>

#include "format/dtypes.h"

namespace telltale::probe {
namespace {

/// Merges neighbours that one loop can walk, in the order that they have.
void Merge(ArrayView* view) {
  std::uint32_t kept = 0;
  for (std::uint32_t i = 0; i < view->ndim; ++i) {
    if (view->shape[i] == 1) continue;
    std::int64_t span = 0;
    if (kept > 0 && !__builtin_mul_overflow(view->strides[i], view->shape[i], &span) &&
        view->strides[kept - 1] == span) {
      view->shape[kept - 1] *= view->shape[i];
      view->strides[kept - 1] = view->strides[i];
      continue;
    }
    view->shape[kept] = view->shape[i];
    view->strides[kept] = view->strides[i];
    ++kept;
  }
  view->ndim = kept;
}

struct Chunk16 {
  unsigned char bytes[16];
};

template <class T>
void CopyStrided(const unsigned char* from, std::ptrdiff_t stride_bytes, std::uint64_t count,
                 unsigned char* out) {
  for (std::uint64_t i = 0; i < count; ++i) {
    std::memcpy(out + i * sizeof(T), from + static_cast<std::ptrdiff_t>(i) * stride_bytes,
                sizeof(T));
  }
}

void CopyRun(const unsigned char* from, std::int64_t stride, std::uint32_t element_bytes,
             std::uint64_t count, unsigned char* out) {
  if (stride == 1) {
    std::memcpy(out, from, count * element_bytes);
    return;
  }
  const auto step =
      static_cast<std::ptrdiff_t>(stride) * static_cast<std::ptrdiff_t>(element_bytes);
  switch (element_bytes) {
    case 1:
      return CopyStrided<std::uint8_t>(from, step, count, out);
    case 2:
      return CopyStrided<std::uint16_t>(from, step, count, out);
    case 4:
      return CopyStrided<std::uint32_t>(from, step, count, out);
    case 8:
      return CopyStrided<std::uint64_t>(from, step, count, out);
    default:
      return CopyStrided<Chunk16>(from, step, count, out);
  }
}

}  // namespace

bool MakeView(const tt_array& array, ArrayView* out) {
  // Callers in other languages give any number: as an enumerator it may not even be read.
  std::uint32_t dtype = 0;
  static_assert(sizeof dtype == sizeof array.dtype);
  std::memcpy(&dtype, &array.dtype, sizeof dtype);
  const std::size_t element_bytes = format::DtypeBytes(dtype);
  if (element_bytes == 0 || array.ndim > TT_MAX_DIMS ||
      (array.ndim > 0 && array.shape == nullptr)) {
    return false;
  }
  out->data = static_cast<const unsigned char*>(array.data);
  out->dtype = array.dtype;
  out->element_bytes = static_cast<std::uint32_t>(element_bytes);
  out->ndim = array.ndim;
  out->repeats = 1;
  bool empty = false;
  for (std::uint32_t i = 0; i < array.ndim; ++i) {
    if (array.shape[i] < 0) return false;
    empty = empty || array.shape[i] == 0;
  }
  if (empty) {
    out->ndim = 1;
    out->shape[0] = 0;
    out->strides[0] = 1;
    out->count = 0;
    return true;
  }
  std::int64_t count = 1;
  for (std::uint32_t i = array.ndim; i-- > 0;) {
    out->shape[i] = array.shape[i];
    out->strides[i] = array.strides != nullptr ? array.strides[i] : count;
    if (__builtin_mul_overflow(count, array.shape[i], &count)) return false;
  }
  if (array.data == nullptr) return false;
  out->count = static_cast<std::uint64_t>(count);
  Merge(out);
  return true;
}

void ForgetOrder(ArrayView* view) {
  if (view->contiguous()) return;
  std::uint32_t kept = 0;
  for (std::uint32_t i = 0; i < view->ndim; ++i) {
    std::int64_t stride = view->strides[i];
    const std::int64_t size = view->shape[i];
    if (stride == 0) {
      view->repeats *= static_cast<std::uint64_t>(size);
      continue;
    }
    if (stride < 0) {
      view->data += static_cast<std::ptrdiff_t>(size - 1) * static_cast<std::ptrdiff_t>(stride) *
                    static_cast<std::ptrdiff_t>(view->element_bytes);
      stride = -stride;
    }
    std::uint32_t at = kept++;  // The largest stride first.
    for (; at > 0 && view->strides[at - 1] < stride; --at) {
      view->strides[at] = view->strides[at - 1];
      view->shape[at] = view->shape[at - 1];
    }
    view->strides[at] = stride;
    view->shape[at] = size;
  }
  view->ndim = kept;
  Merge(view);
}

void CopyElements(const ArrayView& view, std::uint64_t first, std::uint64_t count, void* out) {
  auto* to = static_cast<unsigned char*>(out);
  if (view.contiguous()) {
    std::memcpy(to, view.data + first * view.element_bytes, count * view.element_bytes);
    return;
  }
  const std::uint32_t last = view.ndim - 1;
  std::int64_t index[TT_MAX_DIMS];
  std::uint64_t left = first;
  std::ptrdiff_t offset = 0;
  for (std::uint32_t i = view.ndim; i-- > 0;) {
    const auto size = static_cast<std::uint64_t>(view.shape[i]);
    index[i] = static_cast<std::int64_t>(left % size);
    left /= size;
    offset += static_cast<std::ptrdiff_t>(index[i]) * static_cast<std::ptrdiff_t>(view.strides[i]);
  }
  const auto element_bytes = static_cast<std::ptrdiff_t>(view.element_bytes);
  while (count > 0) {
    const auto run = static_cast<std::uint64_t>(view.shape[last] - index[last]);
    const std::uint64_t n = run < count ? run : count;
    CopyRun(view.data + offset * element_bytes, view.strides[last], view.element_bytes, n, to);
    to += n * view.element_bytes;
    count -= n;
    if (count == 0) return;
    // The whole run was taken: on to the next one, as an odometer goes.
    offset -=
        static_cast<std::ptrdiff_t>(index[last]) * static_cast<std::ptrdiff_t>(view.strides[last]);
    index[last] = 0;
    for (std::uint32_t i = last; i-- > 0;) {
      offset += static_cast<std::ptrdiff_t>(view.strides[i]);
      if (++index[i] < view.shape[i]) break;
      offset -=
          static_cast<std::ptrdiff_t>(view.shape[i]) * static_cast<std::ptrdiff_t>(view.strides[i]);
      index[i] = 0;
    }
  }
}

}  // namespace telltale::probe
