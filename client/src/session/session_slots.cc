// SPDX-License-Identifier: Apache-2.0
#include "client/src/session/session_slots.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "client/src/base/client_log.h"
#include "client/src/memory/session_memory.h"

namespace pinfeed {

SessionSlots::SessionSlots(const FeedOffer& offer, int ordinal, Mapping arena,
                           std::unique_ptr<DeviceSlots> on_device)
    : offer_(offer),
      ordinal_(ordinal),
      arena_(std::move(arena)),
      pinning_(ordinal >= 0 && on_device == nullptr && !offer.read_only),
      pins_(offer.slot_count),
      on_device_(std::move(on_device)) {}

void SessionSlots::Pin(uint32_t index) {
  if (!pinning_ || pins_[index] != nullptr) return;
  Result<std::shared_ptr<const void>> pin = PageLock(ordinal_, address(index), offer_.layout.slot_stride);
  pinning_ = pin.ok();  // those that are page-locked remain so
  if (pinning_)
    pins_[index] = *std::move(pin);
  else
    ClientLog(PF_LOG_WARNING,
              "batches are not page-locked, so copies to the GPU are slower: " + pin.status().message());
}

Status SessionSlots::CopyTo(const OutputMemory& outputs, const BatchDescriptor& batch) const {
  for (size_t i = 0; i < offer_.outputs.size(); ++i) {
    const OfferedOutput& output = offer_.outputs[i];
    if (output.is_extents) continue;
    if (output.spec.extents) {
      RETURN_IF_ERROR(GatherRows(batch, i, outputs));
      continue;
    }
    const TensorPlace& source = offer_.layout.tensors[output.tensor];
    const size_t bytes = source.sample_bytes * batch.samples;
    if (bytes > 0) std::memcpy(outputs[i], address(batch.slot) + source.offset, bytes);
  }
  return OkStatus();
}

Result<std::vector<RowExtent>> SessionSlots::Extents(const BatchDescriptor& batch,
                                                     const OfferedOutput& output) const {
  const TensorSpec& packed = offer_.layout.tensors[output.tensor].spec;
  const uint64_t offset = offer_.layout.tensors[*packed.extents].offset;
  std::vector<RowExtent> extents(batch.samples);
  const std::span<std::byte> bytes = std::as_writable_bytes(std::span(extents));
  if (on_device_ != nullptr) {
    if (!bytes.empty())
      RETURN_IF_ERROR(on_device_->Read(batch.slot * offer_.layout.slot_stride + offset, bytes));
  } else {
    std::copy_n(address(batch.slot) + offset, bytes.size(), bytes.begin());
  }
  const uint64_t rows = offer_.layout.batch_size * static_cast<uint64_t>(packed.shape[0]);
  uint64_t sum = 0;  // of all: rows of samples do not overlap
  for (const RowExtent& extent : extents) {
    const auto first = static_cast<uint64_t>(extent.first);
    const auto count = static_cast<uint64_t>(extent.count);
    if (first > rows || count > rows - first || (sum += count) > rows)
      return BrokenSession("the rows of tensor '" + packed.name + "' lie outside of it");
  }
  return extents;
}

Status SessionSlots::RowOffsets(const BatchDescriptor& batch, const OfferedOutput& output,
                                std::span<const uint32_t> without_rows, std::span<int64_t> offsets) const {
  ASSIGN_OR_RETURN(std::vector<RowExtent> extents, Extents(batch, output));
  for (const uint32_t sample : without_rows)
    if (sample < extents.size()) extents[sample].count = 0;  // else the page has changed meanwhile
  offsets[0] = 0;
  for (size_t i = 0; i < extents.size(); ++i) offsets[i + 1] = offsets[i] + extents[i].count;
  return OkStatus();
}

Status SessionSlots::GatherRows(const BatchDescriptor& batch, size_t number,
                                const OutputMemory& outputs) const {
  const OfferedOutput& output = offer_.outputs[number];
  ASSIGN_OR_RETURN(const std::vector<RowExtent> from, Extents(batch, output));
  uint64_t rows = 0;
  for (const RowExtent& extent : from) rows += static_cast<uint64_t>(extent.count);
  if (rows > outputs.MaxRows(number, rows))
    return BrokenSession("tensor '" + output.spec.name + "' got more rows after they were counted");
  const TensorPlace& source = offer_.layout.tensors[output.tensor];
  const uint64_t row_bytes = source.spec.RowBytes();
  const std::byte* const first = address(batch.slot) + source.offset;
  auto* out = static_cast<std::byte*>(outputs[number]);
  auto* const extents = static_cast<std::byte*>(outputs[*output.spec.extents]);
  RowExtent extent;
  for (size_t i = 0; i < from.size(); ++i) {
    const uint64_t bytes = static_cast<uint64_t>(from[i].count) * row_bytes;
    out = std::copy_n(first + static_cast<uint64_t>(from[i].first) * row_bytes, bytes, out);
    extent.first += extent.count;
    extent.count = from[i].count;
    std::memcpy(extents + i * sizeof extent, &extent, sizeof extent);
  }
  return OkStatus();
}

Status SessionSlots::Unmap(SteadyTime deadline) {
  std::ranges::fill(pins_, nullptr);
  arena_ = Mapping();
  if (on_device_ == nullptr) return OkStatus();
  Status unmapped = on_device_->Unmap(deadline);
  if (unmapped.ok())
    on_device_.reset();
  else
    Abandon();
  return unmapped;
}

}  // namespace pinfeed
