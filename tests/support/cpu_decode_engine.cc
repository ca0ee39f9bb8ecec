// SPDX-License-Identifier: Apache-2.0
#include "tests/support/cpu_decode_engine.h"

#include <fcntl.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/os/memfd.h"
#include "common/spec/tensor_spec.h"
#include "tests/support/planned_images.h"

namespace pinfeed {

class CpuDecodeEngine::Worker final : public DecodeWorker {
 public:
  Worker(std::shared_ptr<CpuDecodeEngine> engine, const OfferedImage& image, uint64_t staging_bytes)
      : engine_(std::move(engine)), image_(image), staging_(staging_bytes) {
    engine_->Count(1);
  }
  ~Worker() override { engine_->Count(-1); }

  std::span<std::byte> staging() override { return staging_; }

  Status Decode(std::span<const ImageToDecode> images, std::span<Status> failures) override {
    RETURN_IF_ERROR(engine_->BeginDecode());
    for (size_t i = 0; i < images.size(); ++i) {
      const std::span<uint8_t> pixels(reinterpret_cast<uint8_t*>(images[i].out), image_.PixelBytes());
      failures[i] = engine_->refuse_ ? engine_->refuse_(images[i].bytes) : OkStatus();
      if (failures[i].ok())
        failures[i] = MakePlanned(images[i].bytes, images[i].plan,
                                  {image_.height, image_.width, image_.channels}, pixels);
      if (!failures[i].ok()) std::ranges::fill(pixels, uint8_t{0});
    }
    engine_->EndDecode(images.size());
    return OkStatus();
  }

  Status CopyAll(std::span<const Copy> copies) override {
    for (const Copy& copy : copies) {
      if (copy.from == nullptr) {
        std::memset(copy.to, 0, copy.bytes);
      } else {
        std::memcpy(copy.to, copy.from, copy.bytes);
      }
    }
    return OkStatus();
  }

 private:
  const std::shared_ptr<CpuDecodeEngine> engine_;
  const OfferedImage image_;
  std::vector<std::byte> staging_;
};

class CpuDecodeEngine::Memory final : public DecodedMemory {
 public:
  Memory(std::shared_ptr<CpuDecodeEngine> engine, const FeedOffer& offer, std::vector<uint64_t> offsets,
         UniqueFd fd, Mapping bytes)
      : engine_(std::move(engine)),
        offer_(offer),
        offsets_(std::move(offsets)),
        fd_(std::move(fd)),
        bytes_(std::move(bytes)) {
    engine_->Count(1);
  }
  ~Memory() override { engine_->Count(-1); }

  std::byte* address() const override { return bytes_.data(); }
  Result<bool> Written() override { return !engine_->writes_held(); }
  void Abandon() override {}
  Result<UniqueFd> Export() const override { return UniqueFd(::fcntl(fd_.get(), F_DUPFD_CLOEXEC, 0)); }

  // What the client's kernels do.
  Status Write(uint32_t samples, const OutputMemory& outputs, void* /*stream*/) override {
    for (size_t i = 0; i < offer_.outputs.size(); ++i) {
      const OfferedOutput& output = offer_.outputs[i];
      const TensorPlace& tensor = offer_.layout.tensors[output.tensor];
      auto* const out = static_cast<std::byte*>(outputs[i]);
      if (output.is_extents) continue;
      if (output.image) {
        WriteImage(output, samples, out);
      } else if (output.spec.extents) {
        GatherRows(output, samples, out, static_cast<std::byte*>(outputs[*output.spec.extents]));
      } else {
        std::memcpy(out, At(output.tensor), tensor.sample_bytes * samples);
      }
    }
    return OkStatus();
  }

 private:
  std::byte* At(size_t tensor) const { return bytes_.data() + offsets_[tensor]; }

  void WriteImage(const OfferedOutput& output, uint32_t samples, std::byte* out) const {
    const OfferedImage& image = *output.image;
    const size_t element = DTypeSize(output.spec.dtype);
    for (uint32_t n = 0; n < samples; ++n) {
      const auto* const pixels = reinterpret_cast<const uint8_t*>(At(output.tensor)) + n * image.PixelBytes();
      const auto mark = static_cast<uint8_t>(At(*image.mark)[n]);
      for (uint32_t y = 0; y < image.height; ++y) {
        for (uint32_t x = 0; x < image.width; ++x) {
          for (uint32_t c = 0; c < image.channels; ++c) {
            const uint32_t from = mark == 1 ? image.width - 1 - x : x;
            const uint8_t value = pixels[(y * image.width + from) * image.channels + c];
            const uint32_t bits = mark == 2 ? 0 : image.table[256 * c + value];
            const size_t to = image.output_layout == ImageLayout::kChw
                                  ? (c * image.height + y) * image.width + x
                                  : (y * image.width + x) * image.channels + c;
            std::memcpy(out + (n * image.PixelBytes() + to) * element, &bits, element);
          }
        }
      }
    }
  }

  void GatherRows(const OfferedOutput& output, uint32_t samples, std::byte* rows, std::byte* extents) const {
    const TensorPlace& tensor = offer_.layout.tensors[output.tensor];
    const uint64_t row = tensor.spec.RowBytes();
    RowExtent to;
    for (uint32_t n = 0; n < samples; ++n) {
      RowExtent from;
      std::memcpy(&from, At(*tensor.spec.extents) + n * sizeof from, sizeof from);
      const auto bytes = static_cast<uint64_t>(from.count) * row;
      std::memcpy(rows, At(output.tensor) + static_cast<uint64_t>(from.first) * row, bytes);
      rows += bytes;
      to.first += to.count;
      to.count = from.count;
      std::memcpy(extents + n * sizeof to, &to, sizeof to);
    }
  }

  const std::shared_ptr<CpuDecodeEngine> engine_;
  const FeedOffer& offer_;
  const std::vector<uint64_t> offsets_;
  const UniqueFd fd_;
  const Mapping bytes_;
};

Result<std::unique_ptr<DecodeWorker>> CpuDecodeEngine::MakeWorker(const OfferedImage& image,
                                                                  uint64_t staging_bytes) {
  RETURN_IF_ERROR(CheckMemory(staging_bytes));
  return std::make_unique<Worker>(shared_from_this(), image, staging_bytes);
}

Result<std::unique_ptr<DecodedMemory>> CpuDecodeEngine::MakeMemory(const FeedOffer& offer,
                                                                   const std::vector<uint64_t>& offsets,
                                                                   uint64_t bytes, bool /*shared*/) {
  RETURN_IF_ERROR(CheckMemory(bytes));
  ASSIGN_OR_RETURN(UniqueFd fd, CreateMemfd("pinfeed-test", bytes));
  ASSIGN_OR_RETURN(Mapping mapping, Mapping::Map(fd.get(), bytes, Access::kReadWrite, false));
  return std::make_unique<Memory>(shared_from_this(), offer, offsets, std::move(fd), std::move(mapping));
}

Result<CopyToForeign> CpuDecodeEngine::Import(UniqueFd memory, uint64_t bytes) {
  RETURN_IF_ERROR(CheckSealedSize(memory.get(), bytes));
  ASSIGN_OR_RETURN(Mapping mapping, Mapping::Map(memory.get(), bytes, Access::kReadWrite, false));
  return CopyToForeign(
      [target = std::make_shared<Mapping>(std::move(mapping))](const std::byte* batch, uint64_t size) {
        std::memcpy(target->data(), batch, size);
        return OkStatus();
      });
}

void CpuDecodeEngine::HoldDecoders(bool hold) {
  const MutexLock lock(mutex_);
  hold_decoders_ = hold;
  changed_.NotifyAll();
}

void CpuDecodeEngine::HoldWrites(bool hold) {
  const MutexLock lock(mutex_);
  hold_writes_ = hold;
}

Status CpuDecodeEngine::CheckMemory(uint64_t bytes) const {
  const MutexLock lock(mutex_);
  return no_memory_ && alive_ >= 2 ? ResourceExhausted("allocate " + std::to_string(bytes) + " bytes")
                                   : OkStatus();
}

void CpuDecodeEngine::RunOutOfMemory() {
  const MutexLock lock(mutex_);
  no_memory_ = true;
}

bool CpuDecodeEngine::writes_held() const {
  const MutexLock lock(mutex_);
  return hold_writes_;
}

void CpuDecodeEngine::Break(Status error) {
  const MutexLock lock(mutex_);
  broken_ = std::move(error);
}

void CpuDecodeEngine::Count(int change) {
  const MutexLock lock(mutex_);
  alive_ += static_cast<size_t>(change);
}

size_t CpuDecodeEngine::alive() const {
  const MutexLock lock(mutex_);
  return alive_;
}

size_t CpuDecodeEngine::decoded() const {
  const MutexLock lock(mutex_);
  return decoded_;
}

void CpuDecodeEngine::AwaitDecoded(size_t images) const {
  const MutexLock lock(mutex_);
  while (decoded_ < images) changed_.Wait(mutex_);
}

bool CpuDecodeEngine::AwaitHeld(size_t decoders, std::chrono::milliseconds at_most) const {
  const auto deadline = std::chrono::steady_clock::now() + at_most;
  const MutexLock lock(mutex_);
  while (held_ < decoders)
    if (!changed_.WaitUntil(mutex_, deadline)) return held_ >= decoders;
  return true;
}

Status CpuDecodeEngine::BeginDecode() {
  const MutexLock lock(mutex_);
  ++held_;
  changed_.NotifyAll();
  while (hold_decoders_) changed_.Wait(mutex_);
  --held_;
  return broken_;
}

void CpuDecodeEngine::EndDecode(size_t images) {
  const MutexLock lock(mutex_);
  decoded_ += images;
  changed_.NotifyAll();
}

}  // namespace pinfeed
