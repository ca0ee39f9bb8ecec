// SPDX-License-Identifier: Apache-2.0
// A sample of a slow storage, read ahead of its decoding. In: a dataset and the sample's id. Out: the same
// fields, from memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "server/dataset/dataset.h"

namespace pinfeed {

// Purpose: one sample of another dataset, as a dataset in which only this sample can be read. Owns: the
// sample's bytes. Borrows: that dataset, which outlives it. Immutable. Threads: any. Errors: each read
// returns the error of the fetch, if there was one; kResourceExhausted when there was no memory for the
// bytes.
class FetchedSample final : public Dataset {
 public:
  // Reads all fields of the sample, which may take as long as its storage does.
  static std::unique_ptr<const FetchedSample> Fetch(const Dataset& source, uint64_t id);

  const DatasetInfo& info() const override { return source_.info(); }
  Status ReadTensor(uint64_t id, size_t field, std::span<std::byte> out) const override;
  Status ReadBytes(uint64_t id, size_t field, std::vector<std::byte>& out) const override;
  std::string Describe(uint64_t id) const override { return source_.Describe(id); }

 private:
  FetchedSample(const Dataset& source, uint64_t id) : source_(source), id_(id) {}
  // Throws std::bad_alloc.
  Status ReadFields();

  const Dataset& source_;
  const uint64_t id_;
  Status status_;                               // of the fetch
  std::vector<std::vector<std::byte>> fields_;  // by number; unspecified when the fetch failed
};

}  // namespace pinfeed
