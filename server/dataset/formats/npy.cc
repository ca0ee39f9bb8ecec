// SPDX-License-Identifier: Apache-2.0
#include "server/dataset/formats/npy.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "common/base/quote.h"
#include "server/dataset/file_kinds.h"
#include "server/dataset/fingerprint.h"
#include "server/dataset/formats/npy_header.h"
#include "server/dataset/formats/registry.h"

namespace pinfeed {
namespace {

constexpr size_t kMaxSampleDims = 15;  // clients take 16 (PF_MAX_DIMS), the batch's included

static_assert(std::endian::native == std::endian::little,
              "samples are handed out as they lie in little-endian files");

constexpr std::string_view kExtension = ".npy";
constexpr size_t kWindowBytes = 65536;
// Up to this distance between two elements reading everything between them costs less than another pread.
constexpr uint64_t kDenseStrideBytes = 4096;

struct Column {
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

// Purpose: counts through a sample's elements in Fortran order (first index fastest) and knows where each
// goes in C order.
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

// In a Fortran-order file the elements of sample `id` lie `samples` elements apart, the first at index `id`.
// They are read in windows that hold many of them while they are close together, else one by one.
Status GatherFortran(const Column& column, uint64_t id, std::span<std::byte> out) {
  const std::span<const int64_t> shape = column.header.shape;
  const uint64_t item = DTypeSize(column.header.dtype);
  const uint64_t stride = static_cast<uint64_t>(shape[0]) * item;
  const uint64_t count = column.sample_bytes / item;
  const uint64_t per_window = stride <= kDenseStrideBytes ? (kWindowBytes - item) / stride + 1 : 1;
  std::array<std::byte, kWindowBytes> window;
  FortranOdometer odometer(shape.subspan(1));
  for (uint64_t first = 0; first < count; first += per_window) {
    const uint64_t here = std::min(per_window, count - first);
    const std::span<std::byte> part(window.data(), (here - 1) * stride + item);
    RETURN_IF_ERROR(column.file->ReadAt(column.header.data_offset + id * item + first * stride, part));
    for (uint64_t i = 0; i < here; ++i, odometer.Advance()) {
      std::memcpy(out.data() + odometer.c_index() * item, part.data() + i * stride, item);
    }
  }
  return OkStatus();
}

// Purpose: the Dataset of one or several .npy files. Owns: their descriptors. Threads and errors: as Dataset
// says. Invariant: every column holds info().samples * sample_bytes bytes behind its header, checked when it
// was opened.
class NpyDataset final : public Dataset {
 public:
  NpyDataset(std::vector<Column> columns, std::string full_path, DatasetInfo info)
      : columns_(std::move(columns)), full_path_(std::move(full_path)), info_(std::move(info)) {}

  const DatasetInfo& info() const override { return info_; }

  Status ReadTensor(uint64_t id, size_t field, std::span<std::byte> out) const override {
    PF_CHECK(id < info_.samples && field < columns_.size(), "sample or field behind the end of the dataset");
    const Column& column = columns_[field];
    PF_CHECK(out.size() == column.sample_bytes, "the place has another size than the sample");
    if (column.header.fortran_order) {
      RETURN_IF_ERROR(GatherFortran(column, id, out));
    } else {
      RETURN_IF_ERROR(column.file->ReadAt(column.header.data_offset + id * column.sample_bytes, out));
    }
    if (column.header.big_endian) SwapBytes(column.header.dtype, out);
    return OkStatus();
  }

  Status ReadBytes(uint64_t /*id*/, size_t /*field*/, std::vector<std::byte>& /*out*/) const override {
    PF_CHECK(false, "npy has no encoded field");
    return OkStatus();
  }

  std::string Describe(uint64_t id) const override {
    return EscapeName(full_path_) + "[" + std::to_string(id) + "]";
  }

 private:
  const std::vector<Column> columns_;
  const std::string full_path_;
  const DatasetInfo info_;
};

Status AddColumn(const Location& base, std::string_view below, std::string name, std::vector<Column>& columns,
                 DatasetInfo& info) {
  ASSIGN_OR_RETURN(std::unique_ptr<const RandomAccessFile> file, base.OpenFile(below));
  const std::string object = "open " + QuotePath(file->path());
  if (!IsFieldName(name)) {
    return InvalidArgument(
        object +
        ": the name before .npy names the field, so it must be text without control characters, quotes "
        "or backslashes");
  }
  ASSIGN_OR_RETURN(NpyHeader header, ReadNpyHeader(*file));
  const auto samples = static_cast<uint64_t>(header.shape[0]);
  if (!columns.empty() && samples != info.samples) {
    return InvalidArgument(object + ": its first dimension is " + std::to_string(samples) + ", but that of " +
                           QuotePath(columns[0].file->path()) + " is " + std::to_string(info.samples) +
                           "; every field needs the same number of samples");
  }
  info.samples = samples;
  TensorSpec spec{std::move(name), header.dtype, {header.shape.begin() + 1, header.shape.end()}};
  if (spec.shape.size() > kMaxSampleDims) {
    return InvalidArgument(object + ": field '" + spec.name + "' has " + std::to_string(header.shape.size()) +
                           " dimensions; the most are " + std::to_string(kMaxSampleDims + 1) +
                           ", the first of which counts the samples");
  }
  ASSIGN_OR_RETURN(const uint64_t sample_bytes, spec.SampleBytes());
  info.fields.push_back({std::move(spec), FieldKind::kTensor});
  columns.push_back({std::move(file), std::move(header), sample_bytes});
  return OkStatus();
}

std::shared_ptr<const Dataset> Finish(const Location& base, std::vector<Column> columns,
                                      std::string user_path, DatasetInfo info) {
  info.format = "npy";
  info.path = std::move(user_path);
  Fingerprint fingerprint;
  fingerprint.Add("npy").Add(info.samples).Add(uint64_t{info.fields.size()});
  for (const Field& field : info.fields) fingerprint.Add(field.spec);
  info.fingerprint = fingerprint.Hex();
  info.remote = base.remote();
  return std::make_shared<const NpyDataset>(std::move(columns), base.path(), std::move(info));
}

class NpyDatasetFormat final : public DatasetFormat {
 public:
  std::string_view name() const override { return "npy"; }
  std::optional<std::string> Recognise(const Contents& contents,
                                       const ParameterMap& /*options*/) const override {
    if (!contents.is_directory)
      return contents.path.ends_with(kExtension) ? std::optional("an array") : std::nullopt;
    if (contents.array.empty()) return std::nullopt;
    return ".npy files (such as " + QuotePath(contents.array) + ")";
  }
  Result<std::shared_ptr<const Dataset>> Open(std::shared_ptr<const Location> location,
                                              const Contents& contents, const std::string& user_path,
                                              ParameterReader& /*options*/) const override {
    return contents.is_directory ? OpenNpyDirectory(*location, user_path) : OpenNpyFile(*location, user_path);
  }
};

}  // namespace

const DatasetFormat& NpyFormat() {
  static const NpyDatasetFormat format;
  return format;
}

Result<std::shared_ptr<const Dataset>> OpenNpyDirectory(const Location& base, std::string user_path) {
  std::vector<std::string> names;
  const auto visit = [&](const DirectoryEntry& entry) -> Status {
    if (!entry.name.ends_with(kExtension)) return OkStatus();
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
  std::vector<Column> columns;
  DatasetInfo info;
  for (const std::string& name : names) {
    RETURN_IF_ERROR(AddColumn(base, name, name.substr(0, name.size() - kExtension.size()), columns, info));
  }
  return Finish(base, std::move(columns), std::move(user_path), std::move(info));
}

Result<std::shared_ptr<const Dataset>> OpenNpyFile(const Location& base, std::string user_path) {
  std::vector<Column> columns;
  DatasetInfo info;
  RETURN_IF_ERROR(AddColumn(base, "", "data", columns, info));
  return Finish(base, std::move(columns), std::move(user_path), std::move(info));
}

}  // namespace pinfeed
