// SPDX-License-Identifier: Apache-2.0
// What the device programs need of a trainer: a GPU context, a stream, memory of its own, feeds opened on it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "common/cuda/device.h"
#include "pinfeed/pinfeed.h"

namespace pinfeed {

[[noreturn]] inline void Fail(const std::string& what) {
  std::fprintf(stderr, "%s\n", what.c_str());
  std::exit(1);
}
inline void Check(const Status& status) {
  if (!status.ok()) Fail(status.ToString());
}
inline void Check(pf_result result, const char* call) {
  if (result != PF_OK) Fail(std::string(call) + ": " + pf_result_name(result) + ": " + pf_last_error());
}

// Purpose: the process's GPU 0 with its context current and one stream. Owns both; ends the program on
// errors.
class TrainerGpu {
 public:
  TrainerGpu() {
    Result<std::shared_ptr<const CudaDevice>> device = CudaDevice::Open(0);
    Check(device.status());
    device_ = *device;
    Check(CudaStatus(driver().cuCtxPushCurrent(device_->context()), "enter the context"));
    Check(CudaStatus(driver().cuStreamCreateWithPriority(&stream_, CU_STREAM_NON_BLOCKING, 0),
                     "make a stream"));
  }
  const CudaDriver& driver() const { return device_->driver(); }
  CUstream stream() const { return stream_; }
  void* Allocate(uint64_t bytes) const {
    CUdeviceptr address = 0;
    Check(CudaStatus(driver().cuMemAlloc(&address, bytes), "allocate"));
    return reinterpret_cast<void*>(address);  // NOLINT(performance-no-int-to-ptr)
  }
  void Synchronize() const {
    Check(CudaStatus(driver().cuStreamSynchronize(stream_), "synchronise the stream"));
  }

 private:
  std::shared_ptr<const CudaDevice> device_;
  CUstream stream_ = nullptr;
};

// Purpose: a feed and memory for one batch of its outputs, on the GPU or on the host. Owns both.
class TrainerFeed {
 public:
  TrainerFeed(const char* address, const char* spec, TrainerGpu* gpu) : gpu_(gpu) {
    pf_open_options options;
    pf_open_options_init(&options, sizeof options);
    options.address = address;
    options.spec_json = spec;
    options.device = gpu != nullptr ? 0 : -1;
    Check(pf_open(&options, &feed_), "pf_open");
    pf_feed_info info;
    pf_feed_info_init(&info, sizeof info);
    Check(pf_get_feed_info(feed_, &info), "pf_get_feed_info");
    if ((info.device >= 0) != (gpu != nullptr))
      Fail("the daemon gave host memory where its GPU was asked for");
    for (uint32_t i = 0; i < info.output_count; ++i) {
      pf_tensor output;
      pf_tensor_init(&output, sizeof output);
      Check(pf_get_output(feed_, i, &output), "pf_get_output");
      outputs_.push_back(output);
      host_.emplace_back(output.bytes);
      memory_.push_back(gpu != nullptr ? static_cast<std::byte*>(gpu->Allocate(output.bytes + kMaxShift))
                                       : host_.back().data());
    }
    pointers_.assign(memory_.begin(), memory_.end());
  }
  ~TrainerFeed() { pf_close(feed_); }
  TrainerFeed(const TrainerFeed&) = delete;
  TrainerFeed& operator=(const TrainerFeed&) = delete;

  pf_feed* get() const { return feed_; }
  const std::vector<pf_tensor>& outputs() const { return outputs_; }
  void* const* pointers() const { return pointers_.data(); }

  // The next batches are written that many elements, of at most 16 bytes, behind where our memory begins, for
  // addresses of every alignment. Precondition: on the GPU, at most 4.
  void Shift(uint64_t elements) {
    for (size_t i = 0; i < outputs_.size(); ++i) {
      uint64_t element_bytes = outputs_[i].bytes;
      for (uint32_t k = 0; k < outputs_[i].dims; ++k)
        element_bytes /= static_cast<uint64_t>(outputs_[i].shape[k]);
      pointers_[i] = memory_[i] + elements * element_bytes;
    }
  }
  // Takes a batch and has it written into our memory; what it was told of it comes back.
  pf_batch_info Next() {
    pf_batch* batch = nullptr;
    Check(pf_next(feed_, 60'000, &batch), "pf_next");
    pf_batch_info info;
    pf_batch_info_init(&info, sizeof info);
    Check(pf_get_batch_info(batch, &info), "pf_get_batch_info");
    rows_.assign(outputs_.size(), info.samples);
    std::vector<int64_t> offsets(size_t{info.samples} + 1);
    for (uint32_t i = 0; i < outputs_.size(); ++i) {
      if (outputs_[i].extents == 0) continue;
      Check(pf_get_row_offsets(batch, i, offsets.data()), "pf_get_row_offsets");
      rows_[i] = static_cast<uint64_t>(offsets.back());
    }
    Check(pf_batch_write(batch, pointers_.data(), static_cast<uint32_t>(pointers_.size()),
                         gpu_ != nullptr ? gpu_->stream() : nullptr),
          "pf_batch_write");
    return info;
  }
  // Takes a batch and gives it back at once, untouched.
  uint32_t Drop() {
    pf_batch* batch = nullptr;
    Check(pf_next(feed_, 60'000, &batch), "pf_next");
    pf_batch_info info;
    pf_batch_info_init(&info, sizeof info);
    Check(pf_get_batch_info(batch, &info), "pf_get_batch_info");
    pf_batch_release(batch);
    return info.samples;
  }
  // Of output i in the last batch: samples, or the rows of a packed one.
  uint64_t Rows(size_t i) const { return rows_[i]; }
  // The bytes of one of them, and of all, on the host.
  uint64_t SampleBytes(size_t i) const {
    return outputs_[i].bytes / static_cast<uint64_t>(outputs_[i].shape[0]);
  }
  const std::byte* OnHost(size_t i) {
    if (gpu_ != nullptr) {
      gpu_->Synchronize();
      Check(CudaStatus(gpu_->driver().cuMemcpyDtoH(
                           host_[i].data(), reinterpret_cast<CUdeviceptr>(pointers_[i]), host_[i].size()),
                       "copy a batch to the host"));
    }
    return host_[i].data();
  }

 private:
  static constexpr uint64_t kMaxShift = 64;
  TrainerGpu* gpu_;
  pf_feed* feed_ = nullptr;
  std::vector<pf_tensor> outputs_;
  std::vector<std::vector<std::byte>> host_;
  std::vector<std::byte*> memory_;
  std::vector<uint64_t> rows_;
  std::vector<void*> pointers_;
};

}  // namespace pinfeed
