// SPDX-License-Identifier: Apache-2.0
#include "server/dataset/selected_fields.h"

#include <algorithm>

#include "common/base/join.h"
#include "common/base/quote.h"

namespace pinfeed {
namespace {

// Purpose: a dataset with some fields of another one, which it shares. Threads and errors: as Dataset.
// Invariant: field i is field fields_[i] of the other dataset.
class SelectedFields final : public Dataset {
 public:
  SelectedFields(std::shared_ptr<const Dataset> dataset, std::vector<size_t> fields, DatasetInfo info)
      : dataset_(std::move(dataset)), fields_(std::move(fields)), info_(std::move(info)) {}

  const DatasetInfo& info() const override { return info_; }

  Status ReadTensor(uint64_t id, size_t field, std::span<std::byte> out) const override {
    PF_CHECK(field < fields_.size(), "field out of range");
    return dataset_->ReadTensor(id, fields_[field], out);
  }

  Status ReadBytes(uint64_t id, size_t field, std::vector<std::byte>& out) const override {
    PF_CHECK(field < fields_.size(), "field out of range");
    return dataset_->ReadBytes(id, fields_[field], out);
  }

  Result<std::unique_ptr<const RandomAccessFile>> OpenImage(uint64_t id, size_t field) const override {
    PF_CHECK(field < fields_.size(), "field out of range");
    return dataset_->OpenImage(id, fields_[field]);
  }

  Prefetched Prefetch(uint64_t id, uint64_t count, size_t field) const override {
    PF_CHECK(field < fields_.size(), "field out of range");
    return dataset_->Prefetch(id, count, fields_[field]);
  }

  std::string Describe(uint64_t id) const override { return dataset_->Describe(id); }

 private:
  const std::shared_ptr<const Dataset> dataset_;
  const std::vector<size_t> fields_;
  const DatasetInfo info_;
};

}  // namespace

Result<std::shared_ptr<const Dataset>> SelectFields(std::shared_ptr<const Dataset> dataset,
                                                    std::vector<std::string> names, bool sample_path) {
  DatasetInfo info = dataset->info();
  if (names.empty()) {
    for (const Field& field : info.fields) {
      if (!field.on_request) names.push_back(field.spec.name);
    }
    if (names.size() == info.fields.size() && !sample_path) return dataset;
  }
  if (sample_path) {
    const auto found = std::ranges::find_if(
        info.fields, [](const Field& field) { return field.spec.name == kSamplePathField; });
    if (found == info.fields.end()) {
      return InvalidArgument("sample_path: the samples of the dataset " + QuotePath(info.path) +
                             " are no files of their own; sample_ids tells which they are");
    }
    if (!found->on_request) {
      return InvalidArgument("sample_path: the dataset " + QuotePath(info.path) +
                             " has a field of that name of its own; leave sample_path out");
    }
    if (std::ranges::find(names, kSamplePathField) == names.end()) names.emplace_back(kSamplePathField);
  }
  std::vector<size_t> fields;
  std::vector<Field> selected;
  for (const std::string& name : names) {
    const auto found =
        std::ranges::find_if(info.fields, [&](const Field& field) { return field.spec.name == name; });
    if (found == info.fields.end()) {
      for (const auto& [left_out, why] : info.left_out) {
        if (left_out != name) continue;
        return InvalidArgument("fields: " + QuotePath(name) + " of the dataset " + QuotePath(info.path) +
                               " is not available as a field: " + why);
      }
      const auto name_of = [](const Field& field) { return EscapeName(field.spec.name); };
      return InvalidArgument("fields: the dataset " + QuotePath(info.path) + " has no field " +
                             QuotePath(name) + ", only " + JoinTexts(info.fields, ", ", name_of));
    }
    fields.push_back(static_cast<size_t>(found - info.fields.begin()));
    selected.push_back(*found);
  }
  info.fields = std::move(selected);
  return std::make_shared<const SelectedFields>(std::move(dataset), std::move(fields), std::move(info));
}

}  // namespace pinfeed
