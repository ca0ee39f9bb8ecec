// SPDX-License-Identifier: Apache-2.0
// Stage 2 of a batch: indexed samples with named fields. In: a path on disk. Out: the bytes of one
// field of one sample, read straight into the place the caller gives.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/spec/tensor_spec.h"

namespace pinfeed {

enum class FieldKind {
  kTensor,        // fixed dtype and shape; read into a place of exactly its size
  kEncodedImage,  // a file's bytes (JPEG, PNG, ...): decoded and transformed by the pipeline; dtype and shape
                  // are unset
  kRagged,        // rows of a fixed dtype and shape, and of another number in each sample: texts, lists.
                  // spec.shape[0] is the largest number of any sample
};

struct Field {
  TensorSpec spec;  // for kEncodedImage only the name counts
  FieldKind kind = FieldKind::kTensor;
  bool on_request = false;  // not part of a sample unless it is asked for by name
};

// The field that a format gives on request if each sample is a file: its path relative to the dataset's
// folder, as a kRagged field of bytes.
inline constexpr std::string_view kSamplePathField = "sample_path";
inline Field SamplePathField(size_t longest_path) {
  return {{std::string(kSamplePathField), DType::kUint8, {static_cast<int64_t>(longest_path)}},
          FieldKind::kRagged,
          true};
}

struct DatasetInfo {
  std::string format;         // "image_folder", "npy", ...
  std::string path;           // as the user named it
  uint64_t samples = 0;       // >= 1
  std::string fingerprint;    // 16 hex digits; changes when order-relevant facts change (names, sizes, count;
                              // not contents)
  std::vector<Field> fields;  // in output order
  std::vector<std::string> classes;  // class names by label, raw bytes; empty if there are none
  bool remote = false;               // of its storage, see Location::remote
  // What the dataset holds and no field gives: its name, and why.
  std::vector<std::pair<std::string, std::string>> left_out = {};
};

// Purpose: read access to one dataset. Immutable after creation.
// Owns: descriptors and the index. Threads: every method may be called from any thread at once; reads may
// block on the disk. Errors: kDataLoss / kNotFound / kPermissionDenied with the file's name, for what the
// disk does after opening.
class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual const DatasetInfo& info() const = 0;

  // Reads a kTensor field. Preconditions: id < info().samples; field is a kTensor field; out.size() is its
  // SampleBytes().
  virtual Status ReadTensor(uint64_t id, size_t field, std::span<std::byte> out) const = 0;

  // Reads all fields of a sample, for datasets whose fields are all kTensor: places[f] as `out` of
  // ReadTensor. A format whose fields come from the same bytes reads them once.
  virtual Status ReadTensors(uint64_t id, std::span<const std::span<std::byte>> places) const {
    for (size_t field = 0; field < places.size(); ++field)
      RETURN_IF_ERROR(ReadTensor(id, field, places[field]));
    return OkStatus();
  }

  // Reads a field whose size differs from sample to sample: the file of a kEncodedImage field, or the rows of
  // a kRagged one. `out` is resized (its capacity is the caller's to reuse). Precondition: id <
  // info().samples; field is of one of these kinds.
  virtual Status ReadBytes(uint64_t id, size_t field, std::vector<std::byte>& out) const = 0;

  // What a person would look for to find the sample: "train/cat/0001.jpg", "images.npy[17]".
  virtual std::string Describe(uint64_t id) const = 0;
};

}  // namespace pinfeed
