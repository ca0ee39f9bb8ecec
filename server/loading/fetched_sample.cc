// SPDX-License-Identifier: Apache-2.0
#include "server/loading/fetched_sample.h"

#include <algorithm>
#include <new>

namespace pinfeed {

std::unique_ptr<const FetchedSample> FetchedSample::Fetch(const Dataset& source, uint64_t id) {
  std::unique_ptr<FetchedSample> sample(new FetchedSample(source, id));
  try {
    sample->status_ = sample->ReadFields();
  } catch (const std::bad_alloc&) {
    sample->status_ = ResourceExhausted(
        "no memory to read the sample (std::bad_alloc): give the daemon more, or open fewer feeds at once");
  }
  if (!sample->status_.ok()) std::vector<std::vector<std::byte>>().swap(sample->fields_);
  return sample;
}

Status FetchedSample::ReadFields() {
  const std::vector<Field>& fields = source_.info().fields;
  fields_.resize(fields.size());
  std::vector<std::span<std::byte>> places;
  for (size_t i = 0; i < fields.size(); ++i) {
    if (fields[i].kind != FieldKind::kTensor) continue;
    ASSIGN_OR_RETURN(const uint64_t bytes, fields[i].spec.SampleBytes());
    fields_[i].resize(bytes);
    places.emplace_back(fields_[i]);
  }
  if (places.size() == fields.size()) return source_.ReadTensors(id_, places);
  for (size_t i = 0; i < fields.size(); ++i) {
    RETURN_IF_ERROR(fields[i].kind == FieldKind::kTensor ? source_.ReadTensor(id_, i, fields_[i])
                                                         : source_.ReadBytes(id_, i, fields_[i]));
  }
  return OkStatus();
}

Status FetchedSample::ReadTensor(uint64_t id, size_t field, std::span<std::byte> out) const {
  PF_CHECK(id == id_, "only the fetched sample can be read");
  RETURN_IF_ERROR(status_);
  const std::vector<std::byte>& bytes = fields_.at(field);
  PF_CHECK(out.size() == bytes.size(), "a tensor is read whole");
  std::copy(bytes.begin(), bytes.end(), out.begin());
  return OkStatus();
}

Status FetchedSample::ReadBytes(uint64_t id, size_t field, std::vector<std::byte>& out) const {
  PF_CHECK(id == id_, "only the fetched sample can be read");
  RETURN_IF_ERROR(status_);
  out = fields_.at(field);
  return OkStatus();
}

}  // namespace pinfeed
