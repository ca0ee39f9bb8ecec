// SPDX-License-Identifier: Apache-2.0
#include "client/src/gpu/convert_kernel.h"

#include <algorithm>
#include <bit>
#include <iterator>
#include <map>
#include <string>
#include <utility>

#include "common/base/round_up.h"
#include "common/base/sync.h"

// The kernels compiled by nvcc for every architecture (client/kernels/CMakeLists.txt).
extern "C" const unsigned char pf_convert_image_fatbin[];

namespace pinfeed {
namespace {

constexpr uint64_t kBytesPerThread = 16;
// By ConvertKernel::Kernel.
constexpr const char* kNames[] = {kConvertKernel1, kConvertKernel2, kConvertKernel4, kGatherKernel,
                                  kDecodeKernel,   kCheckKernel,    kPoisonKernel,   kSamplesKernel1,
                                  kSamplesKernel2, kSamplesKernel4};
static_assert(kGatherThreads == kConvertThreads && kDecodeThreads == kConvertThreads, "see Start");

constexpr uint64_t GroupsOf(uint64_t samples, uint32_t height, uint32_t width) {
  return samples * height * PartsOf(width, kGroupPixels);
}

}  // namespace

Result<std::shared_ptr<const ConvertKernel>> ConvertKernel::For(
    const std::shared_ptr<const CudaDevice>& device) {
  static Mutex mutex;
  // Never destroyed: kernels may still be queued.
  static auto* const kernels = new std::map<int, std::shared_ptr<const ConvertKernel>>;
  const MutexLock lock(mutex);
  std::shared_ptr<const ConvertKernel>& known = (*kernels)[device->ordinal()];
  if (known == nullptr) {
    std::shared_ptr<ConvertKernel> kernel(new ConvertKernel(device));
    RETURN_IF_ERROR(kernel->Load());
    known = std::move(kernel);
  }
  return known;
}

Status ConvertKernel::Load() {
  const CudaDriver& driver = device_->driver();
  const std::string what = "load pinfeed's kernel on GPU " + device_->uuid();
  ASSIGN_OR_RETURN(const CudaScope scope, device_->Enter());
  CUmodule module = nullptr;  // never unloaded: see the class
  RETURN_IF_ERROR(CudaStatus(driver.cuModuleLoadData(&module, pf_convert_image_fatbin), what));
  static_assert(std::size(kNames) == std::size(decltype(functions_){}));
  for (size_t i = 0; i < std::size(kNames); ++i)
    RETURN_IF_ERROR(CudaStatus(driver.cuModuleGetFunction(&functions_[i], module, kNames[i]), what));
  int processors = 0;
  RETURN_IF_ERROR(CudaStatus(
      driver.cuDeviceGetAttribute(&processors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device_->handle()),
      what));
  max_blocks_ = static_cast<uint64_t>(std::max(1, processors)) * kConvertBlocks;
  return OkStatus();
}

Status ConvertKernel::Launch(const ConvertImage& work, size_t element_bytes, CUstream stream) const {
  uint64_t threads = GroupsOf(work.samples, work.height, work.width);
  for (uint32_t i = 0; i < work.copy_count; ++i)
    threads = std::max(threads, PartsOf(work.copies[i].bytes, kBytesPerThread));
  return StartThreads(kConvert1, element_bytes, threads, &work, stream);
}

Status ConvertKernel::Launch(const GatherRows& work, CUstream stream) const {
  return Start(kGather, work.samples, 1, &work, stream);
}

Status ConvertKernel::Launch(const GatherSamples& work, size_t element_bytes, CUstream stream) const {
  uint64_t threads = work.pixels != nullptr ? GroupsOf(work.samples, work.view.height, work.view.width) : 0;
  for (uint32_t i = 0; i < work.copy_count; ++i)
    threads = std::max(threads, PartsOf(work.samples * work.copies[i].bytes, kBytesPerThread));
  return StartThreads(kSamples1, element_bytes, threads, &work, stream);
}

Status ConvertKernel::Poison(const DecodeImages& work, CUstream stream) const {
  return Start(kPoison, work.count, 1, &work, stream);
}

Status ConvertKernel::Launch(const DecodeImages& work, CUstream stream) const {
  if (work.poison != 0) RETURN_IF_ERROR(Start(kCheck, work.count, 1, &work, stream));
  const uint32_t tiles = (work.width + kDecodeTileWidth - 1) / kDecodeTileWidth *
                         ((work.height + kDecodeTileHeight - 1) / kDecodeTileHeight);
  return Start(kDecode, tiles, work.count, &work, stream);
}

Status ConvertKernel::StartThreads(Kernel of_one_byte, size_t element_bytes, uint64_t threads,
                                   const void* work, CUstream stream) const {
  const uint64_t blocks = std::min(PartsOf(threads, kConvertThreads), max_blocks_);
  return Start(static_cast<Kernel>(of_one_byte + std::countr_zero(element_bytes)), blocks, 1, work, stream);
}

Status ConvertKernel::Start(Kernel kernel, uint64_t across, unsigned down, const void* work,
                            CUstream stream) const {
  if (across == 0 || down == 0) return OkStatus();
  void* parameters[] = {const_cast<void*>(work)};  // the driver copies it
  const CUresult launched =
      device_->driver().cuLaunchKernel(functions_[kernel], static_cast<unsigned>(across), down, 1,
                                       kConvertThreads, 1, 1, 0, stream, parameters, nullptr);
  if (launched == CUDA_SUCCESS) return OkStatus();
  return CudaStatus(launched,
                    std::string("launch pinfeed's kernel ") + kNames[kernel] + " on GPU " + device_->uuid());
}

}  // namespace pinfeed
