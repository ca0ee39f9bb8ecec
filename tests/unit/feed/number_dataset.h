// SPDX-License-Identifier: Apache-2.0
// A dataset made of numbers.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "server/dataset/dataset.h"

namespace pinfeed {

// Sample i is kNumbers times the value i; the samples in `bad` cannot be read. `before_read` runs in the
// worker before each read.
class NumberDataset : public Dataset {
 public:
  static constexpr int64_t kNumbers = 64;
  explicit NumberDataset(uint64_t samples, std::set<uint64_t> bad = {},
                         std::function<void(uint64_t)> before_read = {})
      : bad_(std::move(bad)), before_read_(std::move(before_read)) {
    info_.format = "numbers";
    info_.path = "/numbers";
    info_.samples = samples;
    info_.fingerprint = "0123456789abcdef";
    info_.fields = {{{"data", DType::kInt64, {kNumbers}}, FieldKind::kTensor}};
  }
  const DatasetInfo& info() const override { return info_; }
  Status ReadTensor(uint64_t id, size_t /*field*/, std::span<std::byte> out) const override {
    if (before_read_) before_read_(id);
    if (bad_.contains(id)) return DataLoss("read number " + std::to_string(id) + ": it is bad");
    auto* numbers = reinterpret_cast<int64_t*>(out.data());
    std::fill(numbers, numbers + kNumbers, static_cast<int64_t>(id));
    return OkStatus();
  }
  std::string Describe(uint64_t id) const override { return "number " + std::to_string(id); }

 private:
  DatasetInfo info_;
  std::set<uint64_t> bad_;
  std::function<void(uint64_t)> before_read_;
};

// Another dataset, which says that it is remote.
class RemoteDataset final : public Dataset {
 public:
  explicit RemoteDataset(std::shared_ptr<const Dataset> dataset)
      : dataset_(std::move(dataset)), info_(dataset_->info()) {
    info_.remote = true;
  }
  const DatasetInfo& info() const override { return info_; }
  Status ReadTensor(uint64_t id, size_t field, std::span<std::byte> out) const override {
    return dataset_->ReadTensor(id, field, out);
  }
  Status ReadBytes(uint64_t id, size_t field, std::vector<std::byte>& out) const override {
    return dataset_->ReadBytes(id, field, out);
  }
  std::string Describe(uint64_t id) const override { return dataset_->Describe(id); }

 private:
  const std::shared_ptr<const Dataset> dataset_;
  DatasetInfo info_;
};

}  // namespace pinfeed
