// SPDX-License-Identifier: Apache-2.0
// Modules and launches. The kernels run as plain C++, written from what client/kernels/convert_image.h and
// gather_rows.h promise and not after the device code, so that each can check the other.
#include <algorithm>
#include <bit>
#include <cstring>
#include <string_view>

#include "client/kernels/convert_image.h"
#include "client/kernels/decode_images.h"
#include "client/kernels/gather_rows.h"
#include "client/kernels/gather_samples.h"
#include "tests/support/stand_in_cuda/decode_kernel.h"
#include "tests/support/stand_in_cuda/samples_kernel.h"
#include "tests/support/stand_in_cuda/stand_in.h"

namespace pinfeed::stand_in {
namespace {

constexpr uint64_t kTableEntries = 256;  // a channel's
constexpr uint8_t kMirrored = 1;         // marks
constexpr uint8_t kZeros = 2;

// The product, or nothing when it is no address space's.
std::optional<uint64_t> Product(std::initializer_list<uint64_t> factors) {
  uint64_t product = 1;
  for (const uint64_t factor : factors) {
    if (__builtin_mul_overflow(product, factor, &product)) return std::nullopt;
  }
  return product;
}

CUresult CheckCopies(const ConvertImage& work) {
  if (work.copy_count > kMaxTensorCopies) return CUDA_ERROR_LAUNCH_FAILED;
  for (uint32_t i = 0; i < work.copy_count; ++i) {
    const TensorCopy& copy = work.copies[i];
    if (copy.bytes == 0) continue;
    if (!IsReachable(AddressOf(copy.source), copy.bytes, Rights::kRead) ||
        !IsReachable(AddressOf(copy.out), copy.bytes, Rights::kReadWrite))
      return CUDA_ERROR_ILLEGAL_ADDRESS;
  }
  return CUDA_SUCCESS;
}

CUresult Check(const ConvertImage& work, unsigned element_bytes) {
  if (work.samples == 0) return CUDA_SUCCESS;
  if (work.channels != 1 && work.channels != 3) return CUDA_ERROR_LAUNCH_FAILED;
  const auto sample = Product({work.height, work.width, work.channels});
  const auto out = Product({work.samples, work.height, work.width, work.channels, element_bytes});
  if (!sample || !out) return CUDA_ERROR_ILLEGAL_ADDRESS;
  if (*out == 0) return CUDA_SUCCESS;
  const auto before_last = Product({work.samples - 1, work.sample_stride});
  if (!before_last || *sample > UINT64_MAX - *before_last) return CUDA_ERROR_ILLEGAL_ADDRESS;
  if (AddressOf(work.out) % element_bytes != 0) return CUDA_ERROR_MISALIGNED_ADDRESS;
  const bool reachable =
      IsReachable(AddressOf(work.source), *before_last + *sample, Rights::kRead) &&
      IsReachable(AddressOf(work.out), *out, Rights::kReadWrite) &&
      (work.mark == nullptr || IsReachable(AddressOf(work.mark), work.samples, Rights::kRead));
  return reachable ? CUDA_SUCCESS : CUDA_ERROR_ILLEGAL_ADDRESS;
}

template <typename Element>
void Convert(const ConvertImage& work) {
  const uint64_t height = work.height;
  const uint64_t width = work.width;
  const uint64_t channels = work.channels;
  for (uint64_t n = 0; n < work.samples; ++n) {
    const uint8_t* const from = work.source + n * work.sample_stride;
    Element* const to = static_cast<Element*>(work.out) + n * height * width * channels;
    const uint8_t mark = work.mark != nullptr ? work.mark[n] : 0;
    for (uint64_t y = 0; y < height; ++y) {
      for (uint64_t x = 0; x < width; ++x) {
        const uint64_t seen = mark == kMirrored ? width - 1 - x : x;
        for (uint64_t c = 0; c < channels; ++c) {
          const uint8_t byte = from[work.source_chw != 0 ? (c * height + y) * width + seen
                                                         : (y * width + seen) * channels + c];
          to[work.out_chw != 0 ? (c * height + y) * width + x : (y * width + x) * channels + c] =
              mark == kZeros ? Element{0} : static_cast<Element>(work.table[c * kTableEntries + byte]);
        }
      }
    }
  }
}

CUresult Run(const ConvertImage& work, unsigned element_bytes) {
  if (const CUresult wrong = CheckCopies(work); wrong != CUDA_SUCCESS) return wrong;
  if (const CUresult wrong = Check(work, element_bytes); wrong != CUDA_SUCCESS) return wrong;
  for (uint32_t i = 0; i < work.copy_count; ++i)
    std::copy_n(work.copies[i].source, work.copies[i].bytes, work.copies[i].out);
  switch (element_bytes) {
    case 1:
      Convert<uint8_t>(work);
      break;
    case 2:
      Convert<uint16_t>(work);
      break;
    default:
      Convert<uint32_t>(work);
      break;
  }
  return CUDA_SUCCESS;
}

CUresult Gather(const GatherRows& work) {
  const auto source = Product({work.source_rows, work.row_bytes});
  const uint64_t extent_bytes = 2 * sizeof(int64_t) * uint64_t{work.samples};
  if (!source || !IsReachable(AddressOf(work.source), *source, Rights::kRead) ||
      !IsReachable(AddressOf(work.source_extents), extent_bytes, Rights::kRead) ||
      !IsReachable(AddressOf(work.out_extents), extent_bytes, Rights::kReadWrite))
    return CUDA_ERROR_ILLEGAL_ADDRESS;
  uint64_t rows = 0;
  for (uint32_t i = 0; i < work.samples; ++i) {
    const auto first = static_cast<uint64_t>(work.source_extents[2 * i]);
    auto count = static_cast<uint64_t>(work.source_extents[2 * i + 1]);
    if (first > work.source_rows || count > work.source_rows - first) count = 0;
    if (rows > work.max_rows || count > work.max_rows - rows) count = 0;
    uint8_t* const to = work.out + rows * work.row_bytes;
    const uint64_t bytes = count * work.row_bytes;
    if (bytes > 0 && !IsReachable(AddressOf(to), bytes, Rights::kReadWrite))
      return CUDA_ERROR_ILLEGAL_ADDRESS;
    std::copy_n(work.source + first * work.row_bytes, bytes, to);
    work.out_extents[2 * i] = static_cast<int64_t>(rows);
    work.out_extents[2 * i + 1] = static_cast<int64_t>(count);
    rows += count;
  }
  return CUDA_SUCCESS;
}

// The kernels behind the JPEG engines, in the order of cuModuleGetFunction's names.
CUresult LaunchDecoder(unsigned function, CUstream_st& stream, const void* parameters, unsigned grid_y) {
  DecodeImages images{};
  std::memcpy(&images, parameters, sizeof images);
  constexpr CUresult (*kRun[])(const DecodeImages&) = {RunDecode, RunCheck, RunPoison};
  const unsigned which = std::countr_zero(function / (2 * CUfunc_st::kGathers));
  if (which >= std::size(kRun) || (which == 0 && grid_y != images.count)) return CUDA_ERROR_INVALID_VALUE;
  stream.Push([=, run = kRun[which]] { return run(images); });
  return CUDA_SUCCESS;
}

bool IsLive(CUctx_st& context, CUfunction function) {
  const MutexLock lock(g_state.mutex);
  return std::any_of(g_state.modules.begin(), g_state.modules.end(), [&](const auto& entry) {
    return entry.second->context == &context &&
           std::any_of(std::begin(entry.second->functions), std::end(entry.second->functions),
                       [&](const CUfunc_st& known) { return &known == function; });
  });
}

}  // namespace

// Any image will do: none is looked at.
CUresult cuModuleLoadData(CUmodule* module, const void* image) {
  PF_STAND_IN_CONTEXT_CALL(cuModuleLoadData);
  if (module == nullptr || image == nullptr) return CUDA_ERROR_INVALID_VALUE;
  auto made = std::make_unique<CUmod_st>();
  made->context = context;
  unsigned bytes = 1;
  for (CUfunc_st& function : made->functions) {
    function = {context, bytes};
    bytes *= 2;
  }
  *module = made.get();
  const MutexLock lock(g_state.mutex);
  g_state.modules.emplace(*module, std::move(made));
  return CUDA_SUCCESS;
}

CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
  PF_STAND_IN_CONTEXT_CALL(cuModuleGetFunction);
  if (function == nullptr || name == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const MutexLock lock(g_state.mutex);
  const auto found = g_state.modules.find(module);
  if (found == g_state.modules.end()) return CUDA_ERROR_INVALID_HANDLE;
  constexpr std::string_view kNames[] = {kConvertKernel1, kConvertKernel2, kConvertKernel4, kGatherKernel,
                                         kDecodeKernel,   kCheckKernel,    kPoisonKernel,   kSamplesKernel1,
                                         kSamplesKernel2, kSamplesKernel4};
  for (size_t i = 0; i < std::size(kNames); ++i) {
    if (kNames[i] != name) continue;
    *function = &found->second->functions[i];
    return CUDA_SUCCESS;
  }
  return CUDA_ERROR_NOT_FOUND;
}

CUresult cuLaunchKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
                        unsigned int block_x, unsigned int block_y, unsigned int block_z,
                        unsigned int shared_bytes, CUstream handle, void** parameters, void** extra) {
  PF_STAND_IN_CONTEXT_CALL(cuLaunchKernel);
  if (!IsLive(*context, function)) return CUDA_ERROR_INVALID_HANDLE;
  constexpr unsigned kMaxGridX = 0x7fffffff;
  constexpr unsigned kMaxSharedBytes = 48 << 10;  // more has to be asked for
  constexpr unsigned kMaxGridY = 0xffff;
  if (grid_x == 0 || grid_x > kMaxGridX || grid_y == 0 || grid_y > kMaxGridY || grid_z != 1 ||
      block_x != kConvertThreads || block_y != 1 || block_z != 1 || shared_bytes > kMaxSharedBytes ||
      parameters == nullptr || parameters[0] == nullptr || extra != nullptr)
    return CUDA_ERROR_INVALID_VALUE;
  const auto stream = StreamOf(*context, handle);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  // The driver, too, takes the arguments at the call.
  if (function->element_bytes >= CUfunc_st::kSamples) {
    if (grid_y != 1) return CUDA_ERROR_INVALID_VALUE;
    GatherSamples samples{};
    std::memcpy(&samples, parameters[0], sizeof samples);
    const unsigned bytes = function->element_bytes / CUfunc_st::kSamples;
    stream->Push([=] { return RunSamples(samples, bytes); });
    return CUDA_SUCCESS;
  }
  if (function->element_bytes > CUfunc_st::kGathers)
    return LaunchDecoder(function->element_bytes, *stream, parameters[0], grid_y);
  if (grid_y != 1) return CUDA_ERROR_INVALID_VALUE;
  if (function->element_bytes == CUfunc_st::kGathers) {
    GatherRows rows{};
    std::memcpy(&rows, parameters[0], sizeof rows);
    if (grid_x != rows.samples) return CUDA_ERROR_INVALID_VALUE;
    stream->Push([=] { return Gather(rows); });
    return CUDA_SUCCESS;
  }
  ConvertImage work{};
  std::memcpy(&work, parameters[0], sizeof work);
  const unsigned element_bytes = function->element_bytes;
  stream->Push([=] { return Run(work, element_bytes); });
  return CUDA_SUCCESS;
}

}  // namespace pinfeed::stand_in
