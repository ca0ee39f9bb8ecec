// SPDX-License-Identifier: Apache-2.0
// Stage 2 of a batch: indexed samples with named fields. In: a path on disk. Out: the bytes of one field of
// one sample, read directly into the caller's buffer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/result.h"
#include "common/spec/tensor_spec.h"
#include "server/storage/storage.h"

namespace pinfeed {

enum class FieldKind {
  kTensor,        // fixed dtype and shape
  kEncodedImage,  // the bytes of an image file (JPEG, PNG, ...), which the pipeline decodes and transforms;
                  // dtype and shape are unset
  kRagged,        // rows of fixed dtype and shape, such as texts and lists. Their number differs between
                  // samples; spec.shape[0] is the largest
};

struct Field {
  TensorSpec spec;  // for kEncodedImage only the name counts
  FieldKind kind = FieldKind::kTensor;
  bool on_request = false;  // read only if the spec asks for it
};

// An on-request field of formats with one file per sample: the file's path relative to the dataset's folder,
// as a kRagged field of bytes.
inline constexpr std::string_view kSamplePathField = "sample_path";
inline Field SamplePathField(size_t longest_path) {
  return {{std::string(kSamplePathField), DType::kUint8, {static_cast<int64_t>(longest_path)}},
          FieldKind::kRagged,
          true};
}

struct DatasetInfo {
  std::string format;              // "image_folder", "npy", ...
  std::string path;                // as the user named it
  uint64_t samples = 0;            // >= 1
  std::string fingerprint = {};    // 16 hex digits; changes when order-relevant facts change (names, sizes,
                                   // count; not contents)
  std::vector<Field> fields = {};  // in output order
  std::vector<std::string> classes = {};  // class names by label, raw bytes; empty if there are none
  bool remote = false;                    // whether its storage is remote, see Location::remote
  // Data of the dataset that is in no field, such as a column of a table: its name, and why it is left out.
  std::vector<std::pair<std::string, std::string>> left_out = {};
};

// The maximum size of an image file. Reading a larger one fails, so that a sparse file cannot exhaust memory.
inline constexpr uint64_t kMaxImageFileBytes = uint64_t{1} << 30;

// Purpose: read access to one dataset. Immutable after creation.
// Owns: descriptors and the index. Threads: all methods are safe from any thread; reads may block on the
// disk. Errors: kDataLoss, kNotFound or kPermissionDenied with the file's name, if a file changed or became
// unreadable after opening.
class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual const DatasetInfo& info() const = 0;

  // Reads a kTensor field, if there is one. Preconditions: id < info().samples; field is a kTensor field;
  // out.size() is its SampleBytes().
  virtual Status ReadTensor(uint64_t /*id*/, size_t /*field*/, std::span<std::byte> /*out*/) const {
    PF_CHECK(false, "the dataset has no tensor fields");
    return OkStatus();
  }

  // Reads all fields of a sample, if all are kTensor: field f into buffers[f]. Preconditions as in
  // ReadTensor. A format whose fields come from the same bytes overrides this to read them once.
  virtual Status ReadTensors(uint64_t id, std::span<const std::span<std::byte>> buffers) const {
    for (size_t field = 0; field < buffers.size(); ++field)
      RETURN_IF_ERROR(ReadTensor(id, field, buffers[field]));
    return OkStatus();
  }

  // Reads a field whose size differs between samples: the file of a kEncodedImage field, or the rows of a
  // kRagged one, if there is one. Resizes `out`; callers that pass the same vector again save allocations.
  // Preconditions: id < info().samples; the field is of one of these kinds.
  virtual Status ReadBytes(uint64_t /*id*/, size_t /*field*/, std::vector<std::byte>& /*out*/) const {
    PF_CHECK(false, "the dataset has no fields whose size differs");
    return OkStatus();
  }

  // Opens the file that ReadBytes would read, for a caller that may not need its bytes. Null if the image is
  // in no file of its own. Precondition: field is a kEncodedImage field.
  virtual Result<std::unique_ptr<const RandomAccessFile>> OpenImage(uint64_t /*id*/, size_t /*field*/) const {
    return nullptr;
  }

  // Has the storage read a field of the samples [id, id + count) ahead, see RandomAccessFile::Prefetch. Does
  // nothing for an encoded image in a file of its own, which OpenImage opens. Precondition: id + count <=
  // info().samples.
  virtual Prefetched Prefetch(uint64_t /*id*/, uint64_t /*count*/, size_t /*field*/) const { return {}; }

  // Whether another open would find the same samples, as far as the storage tells. Does not look at what
  // Location::StampOf covers.
  virtual bool IsCurrent() const { return true; }

  // Returns where the sample is stored, for messages: "train/cat/0001.jpg", "images.npy[17]".
  virtual std::string Describe(uint64_t id) const = 0;
};

}  // namespace pinfeed
