// SPDX-License-Identifier: Apache-2.0
// The format "manifest": a table with one row per sample. One column may hold paths of image files, in the
// table's folder or below it. In: a .jsonl, .csv or .tsv file, or a directory with Hugging Face's
// metadata.jsonl or metadata.csv. Out: the fields "image" (the file's bytes), "label", and every other column
// of numbers.
// Long because: the two passes over a table share the types of its columns.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/join.h"
#include "common/base/quote.h"
#include "server/dataset/file_kinds.h"
#include "server/dataset/fingerprint.h"
#include "server/dataset/formats/manifest_columns.h"
#include "server/dataset/formats/registry.h"
#include "server/dataset/formats/table.h"
#include "server/dataset/name_order.h"
#include "server/dataset/packed_names.h"
#include "server/memory/index_memory.h"

namespace pinfeed {
namespace {

constexpr std::string_view kImageField = "image";
constexpr std::string_view kLabelField = "label";
constexpr std::string_view kDefaultImageColumn = "file_name";
// Of a class besides its name: its node in a set. Later, its node in a map and its string take two times as
// much.
constexpr uint64_t kClassBytes = 96;
constexpr size_t kMaxClasses = size_t{1} << 20;
constexpr uint64_t kMaxCells = uint64_t{1} << 29;  // rows times columns, including missing values
// How long a writer may pause between two writes, behind a complete row. Within a row it is kSettleTime.
constexpr std::chrono::nanoseconds kPauseBehindRow = std::chrono::milliseconds(200);
constexpr std::chrono::milliseconds kLookEvery(25);  // each look may take a round trip to a file server

// Purpose: the Dataset of a manifest. Owns: the columns. Each read of an image opens its file.
class Manifest final : public Dataset {
 public:
  // `stamp`: of the table, from before it was read; nullopt: not settled then.
  Manifest(std::shared_ptr<const Location> folder, std::string name, std::optional<Stamp> stamp,
           std::optional<PackedNames> images, std::vector<ColumnValues> columns, DatasetInfo info)
      : folder_(std::move(folder)),
        name_(std::move(name)),
        stamp_(stamp),
        images_(std::move(images)),
        columns_(std::move(columns)),
        info_(std::move(info)) {}

  const DatasetInfo& info() const override { return info_; }

  Status ReadTensor(uint64_t id, size_t field, std::span<std::byte> out) const override {
    const std::span<const std::byte> value = Value(id, field);
    PF_CHECK(out.size() == value.size(), "the output buffer has the wrong size");
    std::memcpy(out.data(), value.data(), value.size());
    return OkStatus();
  }

  Status ReadBytes(uint64_t id, size_t field, std::vector<std::byte>& out) const override {
    if (images_ && field == 0) {
      ASSIGN_OR_RETURN(const auto file, OpenImage(id, field));
      return file->ReadAll(kMaxImageFileBytes, out);
    }
    const bool is_path = images_ && info_.fields[field].on_request;
    const std::span<const std::byte> value =
        is_path ? std::as_bytes(std::span((*images_)[id])) : Value(id, field);
    out.assign(value.begin(), value.end());
    return OkStatus();
  }

  Result<std::unique_ptr<const RandomAccessFile>> OpenImage(uint64_t id, size_t field) const override {
    PF_CHECK(images_ && field == 0, "a manifest has one encoded field, its first");
    return folder_->OpenFile((*images_)[id]);
  }

  // In a large folder, the stamp does not cover the table.
  bool IsCurrent() const override {
    const Result<Stamp> stamp = folder_->StampOf(name_);
    return stamp.ok() && stamp_ == *stamp;
  }

  std::string Describe(uint64_t id) const override {
    if (images_) return EscapeName(folder_->FullPath((*images_)[id]));
    return EscapeName(folder_->FullPath(name_)) + "[" + std::to_string(id) + "]";
  }

 private:
  // The image is the first field, and has no column.
  std::span<const std::byte> Value(uint64_t id, size_t field) const {
    const size_t column = field - (images_ ? 1 : 0);
    PF_CHECK(id < info_.samples && column < columns_.size(), "sample or field behind the end of the dataset");
    return columns_[column].At(id);
  }

  const std::shared_ptr<const Location> folder_;
  const std::string name_;
  const std::optional<Stamp> stamp_;
  const std::optional<PackedNames> images_;
  const std::vector<ColumnValues> columns_;
  const DatasetInfo info_;
};

// Returns what is wrong with the path of an image; empty if it is valid.
std::string_view PathFault(std::string_view path) {
  if (path.empty()) return "is empty";
  if (path.front() == '/') return "is absolute; give it relative to the manifest's folder";
  if (path.find("://") != std::string_view::npos)
    return "is a URL, not a path; copy the images next to the manifest";
  if (path.find('\0') != std::string_view::npos) return "holds a NUL byte";
  for (size_t begin = 0; begin <= path.size();) {
    const size_t end = std::min(path.find('/', begin), path.size());
    if (path.substr(begin, end - begin) == "..")
      return "has '..' in it; name the image as it lies below the manifest's folder";
    begin = end + 1;
  }
  if (HasExtension(path, kUnsupportedImageExtensions))
    return "is an image of an unsupported format; convert it to JPEG, PNG or WebP";
  return {};
}

struct ManifestOptions {
  std::string image;  // the column of image paths; empty: "file_name" if it exists, else there are no images
  std::string label;  // the column that becomes "label"; empty: "label" if it exists, else there is no label
};

// Purpose: reads a manifest in two passes: first the types of its columns, then their values. Borrows the
// file.
class ManifestLoader {
 public:
  ManifestLoader(const RandomAccessFile& file, TableKind kind, const ManifestOptions& options,
                 IndexMemory& memory, DatasetInfo known)
      : info(std::move(known)),
        memory_(memory),
        file_(file),
        kind_(kind),
        options_(options),
        label_{.name = options.label.empty() ? std::string(kLabelField) : options.label} {}

  Status Load() {
    RETURN_IF_ERROR(FindTypes());
    RETURN_IF_ERROR(ChooseColumns());
    RETURN_IF_ERROR(ReserveValues());
    return ReadValues();
  }

  DatasetInfo info;
  std::optional<PackedNames> images;
  std::vector<ColumnValues> values;

 private:
  static constexpr size_t kNone = std::numeric_limits<size_t>::max();

  // The column that becomes the label. Texts become the numbers of their classes.
  struct LabelColumn {
    std::string name;
    size_t index = kNone;
    std::set<std::string> classes = {};  // as they come
    uint64_t bytes = 0;                  // of the classes
    std::map<std::string, int64_t> numbers = {};
  };

  // The file changed between the two passes.
  Status FileChanged() const {
    return DataLoss("read " + QuotePath(file_.path()) + ": it changed while it was read");
  }
  Status Fault(const std::string& reason) const {
    return InvalidArgument("manifest " + QuotePath(file_.path()) + ": " + reason);
  }
  size_t Find(std::string_view column) const {
    const auto found = std::ranges::find(columns_, column);
    return found == columns_.end() ? kNone : static_cast<size_t>(found - columns_.begin());
  }
  std::string ColumnNames() const { return JoinTexts(columns_, ", ", QuotePath); }

  Status FindTypes() {
    ASSIGN_OR_RETURN(const std::unique_ptr<TableReader> table, OpenTable(file_, kind_, memory_));
    std::vector<Cell> cells;
    for (;;) {
      ASSIGN_OR_RETURN(const bool more, table->Next(cells));
      if (!more) break;
      // A column that appears first in this row has no value in earlier rows.
      while (types_.size() < cells.size()) {
        if (table->columns()[types_.size()] == label_.name) label_.index = types_.size();
        types_.emplace_back();
        if (info.samples > 0) types_.back().Add(NoValue(), std::nullopt, 1);
      }
      for (size_t i = 0; i < cells.size(); ++i) {
        RETURN_IF_ERROR(CheckText(*table, i, cells[i]));
        types_[i].Add(cells[i], table->Written(i), table->line());
      }
      cell_count_ += cells.size();
      if (cell_count_ > kMaxCells)
        return Fault("it has more than " + std::to_string(kMaxCells) + " values; split it");
      ++info.samples;
      if (label_.index >= cells.size()) continue;
      if (auto* const text = std::get_if<std::string>(&cells[label_.index])) {
        const uint64_t bytes = kClassBytes + text->size();
        if (label_.classes.insert(std::move(*text)).second) {
          label_.bytes += bytes;
          RETURN_IF_ERROR(memory_.Add(bytes));
        }
      }
      if (label_.classes.size() > kMaxClasses)
        return Fault("the column " + QuotePath(label_.name) + " has more than " +
                     std::to_string(kMaxClasses) + " distinct texts, too many for labels");
    }
    content_hash_ = table->ContentHash();
    columns_ = table->columns();
    types_.resize(columns_.size());
    if (info.samples == 0) return Fault("it has no rows");
    return OkStatus();
  }

  // Paths may be any bytes. Other texts are for people and for Python's str.
  Status CheckText(const TableReader& table, size_t column, const Cell& cell) const {
    const auto* const text = std::get_if<std::string>(&cell);
    const std::string& name = table.columns()[column];
    if (text == nullptr || !table.Written(column) || IsUtf8(*text) ||  // JSON is UTF-8
        name == (options_.image.empty() ? kDefaultImageColumn : std::string_view(options_.image)))
      return OkStatus();
    return Fault("line " + std::to_string(table.line()) + ": the text " + QuotePath(*text) +
                 " of the column " + QuotePath(name) + " is not UTF-8; save the file as UTF-8");
  }

  Status ChooseColumns() {
    image_column_ = Find(options_.image.empty() ? kDefaultImageColumn : options_.image);
    if (image_column_ == kNone && !options_.image.empty())
      return Fault("image: there is no column " + QuotePath(options_.image) + ", only " + ColumnNames());
    if (image_column_ != kNone && !types_[image_column_].is_text())
      return Fault(
          "the column " + QuotePath(columns_[image_column_]) + " must hold the images' paths; " +
          (types_[image_column_].reason().empty() ? "it holds numbers" : types_[image_column_].reason()));
    if (label_.index == kNone && !options_.label.empty())
      return Fault("label: there is no column " + QuotePath(options_.label) + ", only " + ColumnNames());
    if (image_column_ != kNone) {
      images.emplace();
      info.fields.push_back({{std::string(kImageField), DType::kUnspecified, {}}, FieldKind::kEncodedImage});
    }
    if (label_.index != kNone) RETURN_IF_ERROR(AddLabelField());
    for (size_t i = 0; i < columns_.size(); ++i) {
      if (i != image_column_ && i != label_.index) RETURN_IF_ERROR(AddOtherField(i));
    }
    if (info.fields.empty())
      return Fault("no column can be a field" +
                   (info.left_out.empty() ? ""
                                          : " (" + QuotePath(info.left_out.front().first) + ": " +
                                                info.left_out.front().second + ")") +
                   ", and no column of image paths is given: set image to one of " + ColumnNames());
    const auto is_tensor = [](const Field& field) { return field.kind == FieldKind::kTensor; };
    for (size_t i = 0; !images && i < columns_.size(); ++i) {
      if (types_[i].names_images() && std::ranges::none_of(info.fields, is_tensor))
        return Fault("the column " + QuotePath(columns_[i]) +
                     " names images, but they would not be read: set "
                     "image to it");
    }
    const auto is_path = [](const Field& field) { return field.spec.name == kSamplePathField; };
    if (images && std::ranges::none_of(info.fields, is_path))
      info.fields.push_back(SamplePathField(types_[image_column_].longest()));
    return OkStatus();
  }

  Status AddLabelField() {
    const ColumnType& type = types_[label_.index];
    if (type.is_text() && !type.is_mixed()) {
      RETURN_IF_ERROR(CheckClasses());
      RETURN_IF_ERROR(memory_.Add(2 * label_.bytes));
      info.classes = {label_.classes.begin(), label_.classes.end()};
      SortByName(info.classes);
      for (size_t i = 0; i < info.classes.size(); ++i)
        label_.numbers[info.classes[i]] = static_cast<int64_t>(i);
      return AddField(label_.index, Field{{std::string(kLabelField), DType::kInt64, {}}});
    }
    std::optional<Field> field = type.field();
    if (!field || type.is_mixed())
      return Fault("the column " + QuotePath(columns_[label_.index]) + " cannot be a label: " +
                   type.reason() + "; give each row a value, all numbers or all texts");
    field->spec.name = kLabelField;
    return AddField(label_.index, *std::move(field));
  }

  // Texts such as "10", " 9" or "+8" would get labels in text order, not by their values.
  Status CheckClasses() const {
    const auto is_number = [](std::string text) {
      std::erase(text, ' ');
      if (text.starts_with('+') || text.starts_with('-')) text.erase(0, 1);
      return text.find_first_of("0123456789") != std::string::npos &&
             text.find_first_not_of("0123456789.") == std::string::npos && std::ranges::count(text, '.') <= 1;
    };
    if (std::ranges::all_of(label_.classes, is_number)) {
      return Fault("the column " + QuotePath(label_.name) + " holds numbers as text, such as " +
                   QuotePath(*label_.classes.begin()) + "; write plain numbers");
    }
    const auto has_nul = [](const std::string& text) { return text.find('\0') != std::string::npos; };
    if (std::ranges::any_of(label_.classes, has_nul))
      return Fault("the column " + QuotePath(label_.name) + " holds a NUL byte");
    return OkStatus();
  }

  Status AddOtherField(size_t column) {
    const std::string& name = columns_[column];
    std::optional<Field> field = types_[column].field();
    if (!field) {
      info.left_out.emplace_back(name, types_[column].reason());
      return OkStatus();
    }
    const bool taken = std::ranges::any_of(info.fields, [&](const Field& f) { return f.spec.name == name; });
    if (taken || !IsFieldName(name)) {
      info.left_out.emplace_back(name, taken ? "another column already provides the field of that name"
                                             : "its name must be text without control characters, quotes or "
                                               "backslashes");
      return OkStatus();
    }
    field->spec.name = name;
    return AddField(column, *std::move(field));
  }

  Status AddField(size_t column, Field field) {
    RETURN_IF_ERROR(field.spec.SampleBytes().status());
    info.fields.push_back(field);
    values.emplace_back(std::move(field));
    field_columns_.push_back(column);
    return OkStatus();
  }

  // Makes room for the values, if the host has the memory now.
  Status ReserveValues() {
    IndexMemory all;
    uint64_t bytes = images ? PackedNames::MemoryOf(info.samples, types_[image_column_].total()) : 0;
    for (size_t i = 0; i < values.size(); ++i)
      bytes += values[i].MemoryOf(info.samples, types_[field_columns_[i]].total());
    RETURN_IF_ERROR(all.Add(bytes));
    if (images) images->Reserve(info.samples, types_[image_column_].total());
    for (size_t i = 0; i < values.size(); ++i)
      values[i].Reserve(info.samples, types_[field_columns_[i]].total());
    return OkStatus();
  }

  uint64_t TakenBytes() const {
    uint64_t bytes = images ? PackedNames::MemoryOf(images->size(), images->bytes()) : 0;
    for (const ColumnValues& column : values) bytes += column.bytes().size() + column.ends().size();
    return bytes;
  }

  Status ReadValues() {
    ASSIGN_OR_RETURN(const std::unique_ptr<TableReader> table, OpenTable(file_, kind_, memory_));
    std::vector<Cell> cells;
    uint64_t taken = 0;  // by the values
    size_t known = 0;    // columns of the table that are those of the first pass
    for (uint64_t row = 0; row < info.samples; ++row) {
      ASSIGN_OR_RETURN(const bool more, table->Next(cells));
      if (!more) return FileChanged();
      for (const std::vector<std::string>& names = table->columns(); known < names.size(); ++known)
        if (known >= columns_.size() || names[known] != columns_[known]) return FileChanged();
      cells.resize(columns_.size());
      if (images) RETURN_IF_ERROR(AddImage(TextOf(*table, cells, image_column_), table->line()));
      for (size_t i = 0; i < values.size(); ++i) {
        const Cell& cell = cells[field_columns_[i]];
        const auto* const text = std::get_if<std::string>(&cell);
        if (text != nullptr && field_columns_[i] == label_.index) {
          const auto found = label_.numbers.find(*text);
          if (found == label_.numbers.end()) return FileChanged();
          values[i].AddInteger(found->second);
          continue;
        }
        if (!types_[field_columns_[i]].is_text())
          values[i].Add(cell);
        else if (const auto written = TextOf(*table, cells, field_columns_[i]))
          values[i].AddText(*written);
        if (values[i].rows() != row + 1) return FileChanged();
      }
      const uint64_t before = std::exchange(taken, TakenBytes());
      RETURN_IF_ERROR(memory_.Add(taken - before));
    }
    ASSIGN_OR_RETURN(const bool more, table->Next(cells));
    return more || table->ContentHash() != content_hash_ ? FileChanged() : OkStatus();
  }

  Status AddImage(std::optional<std::string_view> path, uint64_t line) {
    if (!path) return FileChanged();
    const std::string_view fault = PathFault(*path);
    if (!fault.empty() || images->bytes() + path->size() > PackedNames::kMaxBytes) {
      return InvalidArgument(
          "line " + std::to_string(line) + " of " + QuotePath(file_.path()) + ": image path " +
          QuotePath(*path) + " " +
          (fault.empty() ? "makes the paths too long in total; split the dataset" : std::string(fault)));
    }
    images->Add(*path);
    return images->bytes() <= types_[image_column_].total() ? OkStatus() : FileChanged();
  }

  IndexMemory& memory_;
  const RandomAccessFile& file_;
  const TableKind kind_;
  const ManifestOptions& options_;
  std::vector<std::string> columns_;
  std::vector<ColumnType> types_;
  uint64_t cell_count_ = 0;
  uint64_t content_hash_ = 0;  // of the first pass
  size_t image_column_ = kNone;
  LabelColumn label_;
  std::vector<size_t> field_columns_;  // the column of each entry of `values`
};

// Hashes the values of all rows, since rows may be reordered.
std::string FingerprintOf(const DatasetInfo& info, const std::optional<PackedNames>& images,
                          const std::vector<ColumnValues>& values) {
  Fingerprint fingerprint;
  const auto on_request = std::ranges::count_if(info.fields, &Field::on_request);
  fingerprint.Add("manifest").Add(info.samples);
  fingerprint.Add(static_cast<uint64_t>(info.fields.size()) - static_cast<uint64_t>(on_request));
  for (const Field& field : info.fields) {
    if (!field.on_request) fingerprint.Add(field.spec);
  }
  for (const std::string& name : info.classes) fingerprint.Add(name);
  for (const ColumnValues& column : values) fingerprint.Add(column.bytes()).Add(column.ends());
  for (uint64_t row = 0; images && row < info.samples; ++row) fingerprint.Add((*images)[row]);
  return fingerprint.Hex();
}

// Returns false if the table is still being written. Watches one that changed just now: between two writes it
// may end in the middle of a number.
Result<bool> IsComplete(const RandomAccessFile& table) {
  const auto is_same = [&] { return table.HasSameContents(RandomAccessFile::Asked::kServer); };
  if (!is_same()) return false;
  std::byte last{};
  if (table.size() > 0) RETURN_IF_ERROR(table.ReadAt(table.size() - 1, {&last, 1}));
  const std::chrono::nanoseconds pause = last == std::byte{'\n'} ? kPauseBehindRow : kSettleTime;
  // A time ahead of this clock says nothing: it is as if the last change were now.
  const int64_t now = UnixNanoseconds();
  const std::chrono::nanoseconds quiet(
      now - std::clamp(LatestChange(table.changed_ns()), now - pause.count(), now));
  const auto until = std::chrono::steady_clock::now() + pause - quiet;
  while (std::chrono::steady_clock::now() < until && is_same()) std::this_thread::sleep_for(kLookEvery);
  return is_same();
}

// Opens the table `name` in `folder`. Image paths are relative to the folder. The columns become fields:
// - integers: int64; other numbers: float64; true and false: bool;
// - lists of numbers, all of one length: one tensor per sample;
// - text in the label column: int64, the text's index in the order of Python's sorted(). The texts become the
//   dataset's classes;
// - lists of numbers of different lengths: rows of numbers;
// - lists of lists of numbers, the inner ones all of one length: the same, with rows of that length;
// - text: rows of bytes. In a .csv or .tsv file, a column is one of texts if any cell is neither empty nor a
//   number. Its empty cells are then empty texts, and its numbers texts as written;
// - any other column, such as one of numbers with missing values: none. DatasetInfo::left_out says why.
// kInvalidArgument names the line, or the column and the columns that exist.
Result<std::shared_ptr<const Dataset>> OpenManifest(std::shared_ptr<const Location> folder,
                                                    const std::string& name, DatasetInfo info,
                                                    const ManifestOptions& options) {
  ASSIGN_OR_RETURN(const TableKind kind, TableKindOf(name));
  const int64_t now = UnixNanoseconds();
  ASSIGN_OR_RETURN(const Stamp stamp, folder->StampOf(name));
  const auto settled = IsSettled(stamp.changed_ns, now) ? std::optional(stamp) : std::nullopt;
  ASSIGN_OR_RETURN(const std::unique_ptr<const RandomAccessFile> file, folder->OpenFile(name));
  IndexMemory memory;
  ManifestLoader loader(*file, kind, options, memory, std::move(info));
  const Status loaded = loader.Load();
  if (loaded.code() == Code::kResourceExhausted)
    return loaded.WithContext("open manifest " + QuotePath(file->path()));
  ASSIGN_OR_RETURN(const bool is_complete, IsComplete(*file));
  if (!is_complete) {
    return DataLoss(
        "read " + QuotePath(file->path()) +
        ": it is being written. Open it when it is complete, or write another file and rename that"
        " to this name");
  }
  RETURN_IF_ERROR(loaded);
  loader.info.fingerprint = FingerprintOf(loader.info, loader.images, loader.values);
  return std::make_shared<const Manifest>(std::move(folder), name, settled, std::move(loader.images),
                                          std::move(loader.values), std::move(loader.info));
}

class ManifestDatasetFormat final : public DatasetFormat {
 public:
  std::string_view name() const override { return "manifest"; }
  std::span<const std::string_view> options() const override {
    static constexpr std::string_view kOptions[] = {"image", "label"};
    return kOptions;
  }
  void CheckOptions(ParameterReader& options, bool /*complete*/) const override {
    options.Word("image", "");
    options.Word("label", "");
  }
  std::optional<std::string> Recognise(const DatasetContents& contents,
                                       const ParameterMap& /*options*/) const override {
    if (!contents.is_directory)
      return TableKindOf(contents.path).ok() ? std::optional("a manifest") : std::nullopt;
    if (contents.metadata.empty()) return std::nullopt;
    return QuotePath(contents.metadata);
  }
  Result<std::shared_ptr<const Dataset>> Open(std::shared_ptr<const Location> location,
                                              const DatasetContents& contents, DatasetInfo info,
                                              ParameterReader& given, IndexStore* /*store*/) const override {
    const ManifestOptions options{given.Word("image", ""), given.Word("label", "")};
    if (!contents.is_directory) {
      const std::string name = contents.path.substr(contents.path.rfind('/') + 1);
      ASSIGN_OR_RETURN(std::shared_ptr<const Location> folder, location->Parent());
      return OpenManifest(std::move(folder), name, std::move(info), options);
    }
    if (contents.metadata.empty()) {
      return InvalidArgument("manifest " + QuotePath(contents.path) +
                             " is a directory without a metadata.jsonl or metadata.csv; name the file");
    }
    if (contents.both_metadata) {
      return InvalidArgument("manifest " + QuotePath(contents.path) +
                             " has a metadata.jsonl and a metadata.csv, which may differ; name the file");
    }
    return OpenManifest(std::move(location), contents.metadata, std::move(info), options);
  }
};

}  // namespace

const DatasetFormat& ManifestFormat() {
  static const ManifestDatasetFormat format;
  return format;
}

}  // namespace pinfeed
