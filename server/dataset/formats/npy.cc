// SPDX-License-Identifier: Apache-2.0
// The format "npy": arrays whose first dimension counts the samples. In: a .npy file, or a directory of them.
// Out: one field per array. A directory has one field per <field>.npy, in bytewise order of their names; a
// single file has the field "data". Samples are read directly into the caller's buffer; big-endian ones are
// swapped in place.
// In a Fortran-order array each sample is spread over the whole file. It is gathered in bounded memory, but
// slowly: one read per element if the first dimension spans more than 4 KiB. np.ascontiguousarray before
// np.save avoids that.

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <memory>
#include <string>

#include "common/base/quote.h"
#include "server/dataset/file_kinds.h"
#include "server/dataset/fingerprint.h"
#include "server/dataset/formats/npy_header.h"
#include "server/dataset/formats/registry.h"

namespace pinfeed {
namespace {

// The maximum number of .npy files in a directory; each stays open. More files are probably one per sample,
// which this format does not support.
constexpr size_t kMaxNpyFields = 256;

static_assert(std::endian::native == std::endian::little,
              "samples keep the byte order of little-endian files");

constexpr std::string_view kExtension = ".npy";
constexpr size_t kWindowBytes = 65536;
// If elements are at most this far apart, reading everything between them is cheaper than another pread.
constexpr uint64_t kDenseStrideBytes = 4096;

struct ArrayFile {
  std::unique_ptr<const RandomAccessFile> file;
  NpyHeader header;
  uint64_t sample_bytes = 0;
};

template <typename Word>
void SwapWords(std::span<std::byte> bytes) {
  for (size_t i = 0; i + sizeof(Word) <= bytes.size(); i += sizeof(Word)) {
    Word word;
    std::memcpy(&word, bytes.data() + i, sizeof(word));
    if constexpr (sizeof(Word) == 2) word = __builtin_bswap16(word);
    if constexpr (sizeof(Word) == 4) word = __builtin_bswap32(word);
    if constexpr (sizeof(Word) == 8) word = __builtin_bswap64(word);
    std::memcpy(bytes.data() + i, &word, sizeof(word));
  }
}

void SwapBytes(DType dtype, std::span<std::byte> bytes) {
  const bool complex = dtype == DType::kComplex64 || dtype == DType::kComplex128;
  switch (DTypeSize(dtype) / (complex ? 2 : 1)) {
    case 2:
      return SwapWords<uint16_t>(bytes);
    case 4:
      return SwapWords<uint32_t>(bytes);
    case 8:
      return SwapWords<uint64_t>(bytes);
    default:
      return;
  }
}

// Purpose: iterates over a sample's elements in Fortran order (first index fastest) and computes the index of
// each in C order.
class FortranOdometer {
 public:
  // Precondition: shape.size() <= kMaxNpyRank.
  explicit FortranOdometer(std::span<const int64_t> shape) : shape_(shape) {
    uint64_t stride = 1;
    for (size_t axis = shape.size(); axis-- > 0;) {
      strides_[axis] = stride;
      stride *= static_cast<uint64_t>(shape[axis]);
    }
  }
  uint64_t c_index() const { return c_index_; }
  void Advance() {
    for (size_t axis = 0; axis < shape_.size(); ++axis) {
      c_index_ += strides_[axis];
      if (++index_[axis] < shape_[axis]) return;
      c_index_ -= strides_[axis] * static_cast<uint64_t>(shape_[axis]);
      index_[axis] = 0;
    }
  }

 private:
  std::span<const int64_t> shape_;
  std::array<uint64_t, kMaxNpyRank> strides_ = {};
  std::array<int64_t, kMaxNpyRank> index_ = {};
  uint64_t c_index_ = 0;
};

// In a Fortran-order file the elements of sample `id` are `samples` elements apart, the first at index `id`.
// Elements that are close together are read in windows of many, others one by one.
Status GatherFortran(const ArrayFile& array, uint64_t id, std::span<std::byte> out) {
  const std::span<const int64_t> shape = array.header.shape;
  const uint64_t element_bytes = DTypeSize(array.header.dtype);
  const uint64_t stride = static_cast<uint64_t>(shape[0]) * element_bytes;
  const uint64_t count = array.sample_bytes / element_bytes;
  const uint64_t per_window = stride <= kDenseStrideBytes ? (kWindowBytes - element_bytes) / stride + 1 : 1;
  std::array<std::byte, kWindowBytes> window;
  FortranOdometer odometer(shape.subspan(1));
  for (uint64_t first = 0; first < count; first += per_window) {
    const uint64_t in_window = std::min(per_window, count - first);
    const std::span<std::byte> part(window.data(), (in_window - 1) * stride + element_bytes);
    RETURN_IF_ERROR(array.file->ReadAt(array.header.data_offset + id * element_bytes + first * stride, part));
    for (uint64_t i = 0; i < in_window; ++i, odometer.Advance()) {
      std::memcpy(out.data() + odometer.c_index() * element_bytes, part.data() + i * stride, element_bytes);
    }
  }
  return OkStatus();
}

// Purpose: the Dataset of one or more .npy files. Owns: their descriptors. Threads and errors: as Dataset.
// Invariant: every array holds info().samples * sample_bytes bytes after its header, checked when it
// was opened.
class NpyDataset final : public Dataset {
 public:
  NpyDataset(std::vector<ArrayFile> arrays, std::string full_path, DatasetInfo info)
      : arrays_(std::move(arrays)), full_path_(std::move(full_path)), info_(std::move(info)) {}

  const DatasetInfo& info() const override { return info_; }

  Status ReadTensor(uint64_t id, size_t field, std::span<std::byte> out) const override {
    PF_CHECK(id < info_.samples && field < arrays_.size(), "sample or field out of range");
    const ArrayFile& array = arrays_[field];
    PF_CHECK(out.size() == array.sample_bytes, "the output buffer has the wrong size");
    if (array.header.fortran_order) {
      RETURN_IF_ERROR(GatherFortran(array, id, out));
    } else {
      RETURN_IF_ERROR(array.file->ReadAt(array.header.data_offset + id * array.sample_bytes, out));
    }
    if (array.header.big_endian) SwapBytes(array.header.dtype, out);
    return OkStatus();
  }

  // Of Fortran order nothing: its samples are spread over the whole file.
  Prefetched Prefetch(uint64_t id, uint64_t count, size_t field) const override {
    const ArrayFile& array = arrays_[field];
    if (array.header.fortran_order) return {};
    return array.file->Prefetch(array.header.data_offset + id * array.sample_bytes,
                                count * array.sample_bytes);
  }

  std::string Describe(uint64_t id) const override {
    return EscapeName(full_path_) + "[" + std::to_string(id) + "]";
  }

 private:
  const std::vector<ArrayFile> arrays_;
  const std::string full_path_;
  const DatasetInfo info_;
};

Status AddArray(const Location& base, std::string_view below, std::string name,
                std::vector<ArrayFile>& arrays, DatasetInfo& info) {
  ASSIGN_OR_RETURN(std::unique_ptr<const RandomAccessFile> file, base.OpenFile(below));
  const std::string object = "open " + QuotePath(file->path());
  if (!IsFieldName(name)) {
    return InvalidArgument(
        object +
        ": the name before .npy names the field, so it must be text without control characters, quotes "
        "or backslashes");
  }
  ASSIGN_OR_RETURN(NpyHeader header, ReadNpyHeader(*file));
  if (header.shape.empty()) {
    return InvalidArgument(object +
                           ": .npy array is a scalar (shape ()); its first dimension must count the samples");
  }
  const auto samples = static_cast<uint64_t>(header.shape[0]);
  if (!arrays.empty() && samples != info.samples) {
    return InvalidArgument(object + ": its first dimension is " + std::to_string(samples) + ", but that of " +
                           QuotePath(arrays[0].file->path()) + " is " + std::to_string(info.samples) +
                           "; every field needs the same number of samples");
  }
  info.samples = samples;
  TensorSpec spec{std::move(name), header.dtype, {header.shape.begin() + 1, header.shape.end()}};
  if (spec.shape.size() > kMaxSampleDims) {
    return InvalidArgument(object + ": field '" + spec.name + "' has " + std::to_string(header.shape.size()) +
                           " dimensions; the maximum is " + std::to_string(kMaxSampleDims + 1) +
                           ", including the first one, which counts the samples");
  }
  ASSIGN_OR_RETURN(const uint64_t sample_bytes, spec.SampleBytes());
  info.fields.push_back({std::move(spec), FieldKind::kTensor});
  arrays.push_back({std::move(file), std::move(header), sample_bytes});
  return OkStatus();
}

std::shared_ptr<const Dataset> MakeDataset(const Location& base, std::vector<ArrayFile> arrays,
                                           DatasetInfo info) {
  Fingerprint fingerprint;
  fingerprint.Add("npy").Add(info.samples).Add(uint64_t{info.fields.size()});
  for (const Field& field : info.fields) fingerprint.Add(field.spec);
  info.fingerprint = fingerprint.Hex();
  return std::make_shared<const NpyDataset>(std::move(arrays), base.path(), std::move(info));
}

Result<std::shared_ptr<const Dataset>> OpenNpyDirectory(const Location& base, DatasetInfo info) {
  std::vector<std::string> names;
  const auto visit = [&](const DirectoryEntry& entry) -> Status {
    if (IsOfMacos(entry.name) || !HasExtension(entry.name, kNpyExtensions)) return OkStatus();
    if (entry.kind != EntryKind::kDirectory && !entry.name.ends_with(kExtension)) {
      return InvalidArgument("npy dataset " + QuotePath(base.path()) + ": " + QuotePath(entry.name) +
                             " would be left out, since it does not end in .npy; rename it, or move it away");
    }
    if (names.size() == kMaxNpyFields) {
      return InvalidArgument(
          "npy dataset " + QuotePath(base.path()) + " holds more than " + std::to_string(kMaxNpyFields) +
          " .npy files; each file is one field of all samples, not one sample: stack them into one array");
    }
    names.emplace_back(entry.name);
    return OkStatus();
  };
  ASSIGN_OR_RETURN([[maybe_unused]] const NodeId id, base.List("", visit));
  if (names.empty()) {
    return InvalidArgument("npy dataset " + QuotePath(base.path()) +
                           " holds no .npy file; expected one per field, as in images.npy");
  }
  std::ranges::sort(names);
  std::vector<ArrayFile> arrays;
  for (const std::string& name : names) {
    RETURN_IF_ERROR(AddArray(base, name, name.substr(0, name.size() - kExtension.size()), arrays, info));
  }
  return MakeDataset(base, std::move(arrays), std::move(info));
}

Result<std::shared_ptr<const Dataset>> OpenNpyFile(const Location& base, DatasetInfo info) {
  std::vector<ArrayFile> arrays;
  RETURN_IF_ERROR(AddArray(base, "", "data", arrays, info));
  return MakeDataset(base, std::move(arrays), std::move(info));
}

class NpyDatasetFormat final : public DatasetFormat {
 public:
  std::string_view name() const override { return "npy"; }
  std::optional<std::string> Recognise(const DatasetContents& contents,
                                       const ParameterMap& /*options*/) const override {
    if (!contents.is_directory)
      return contents.path.ends_with(kExtension) ? std::optional("an array") : std::nullopt;
    if (contents.npy_file.empty()) return std::nullopt;
    return ".npy files (such as " + QuotePath(contents.npy_file) + ")";
  }
  Result<std::shared_ptr<const Dataset>> Open(std::shared_ptr<const Location> location,
                                              const DatasetContents& contents, DatasetInfo info,
                                              ParameterReader& /*options*/,
                                              IndexStore* /*store*/) const override {
    return (contents.is_directory ? OpenNpyDirectory : OpenNpyFile)(*location, std::move(info));
  }
};

}  // namespace

const DatasetFormat& NpyFormat() {
  static const NpyDatasetFormat format;
  return format;
}

}  // namespace pinfeed
