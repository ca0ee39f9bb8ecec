// SPDX-License-Identifier: Apache-2.0
// The format "webdataset": tar archives (shards) in which neighbouring files of one name but for the
// extension are a sample, as https://github.com/webdataset/webdataset defines them. In: a .tar file, or a
// directory of them. Out: the fields "image" (.jpg, .jpeg, .png, .webp), "label" (int64; .cls), tensors
// (.npy), and the bytes of other files, by extension. Samples come in the order of the shards' names, and
// within a shard as they lie.
#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "common/base/log.h"
#include "common/base/parse_number.h"
#include "common/base/quote.h"
#include "server/dataset/file_kinds.h"
#include "server/dataset/fingerprint.h"
#include "server/dataset/formats/npy_header.h"
#include "server/dataset/formats/registry.h"
#include "server/dataset/formats/shard_index.h"
#include "server/dataset/name_order.h"
#include "server/memory/host_memory_ledger.h"
#include "server/storage/file_range.h"

namespace pinfeed {
namespace {

// Errors: passing over such a shard would shift every later sample.
constexpr std::array<std::string_view, 6> kCompressed = {".tar.gz",  ".tgz",     ".tar.zst",
                                                         ".tar.bz2", ".tar.lz4", ".tar.xz"};
constexpr size_t kMaxShards = size_t{1} << 16;

// "0001.tar/" and the sample's key.
std::string SampleName(const Location& base, const ShardIndex& shard, uint64_t sample) {
  const std::string file = shard.name.empty() ? base.path().substr(base.path().rfind('/') + 1) : shard.name;
  return file + "/" + std::string(shard.keys[sample]);
}

// Purpose: the Dataset of tar shards. Owns: the root's descriptor and the index. Each read opens its shard,
// so the number of descriptors does not depend on the number of shards. Threads and errors: as Dataset.
class WebDataset final : public Dataset {
 public:
  struct Column {
    // By shard, then by sample; none of labels that the shard's index has.
    std::vector<std::vector<ShardPart>> parts;
    std::optional<NpyHeader> array;  // of each .npy file
  };

  // `columns`: one for each field but the last, which is the samples' path.
  WebDataset(std::shared_ptr<const Location> base, std::vector<ShardIndex> shards,
             std::vector<Column> columns, DatasetInfo info)
      : base_(std::move(base)),
        shards_(std::move(shards)),
        columns_(std::move(columns)),
        info_(std::move(info)) {
    for (const ShardIndex& shard : shards_)
      ends_.push_back((ends_.empty() ? 0 : ends_.back()) + shard.keys.size());
  }

  const DatasetInfo& info() const override { return info_; }

  Status ReadTensor(uint64_t id, size_t field, std::span<std::byte> out) const override {
    const Column& column = columns_[field];
    const Place place = Find(id);
    if (!column.array) return ReadLabel(id, place, field, out);
    ASSIGN_OR_RETURN(const std::unique_ptr<const RandomAccessFile> file, Open(place, field));
    // The part has the size of the others, so the header lies within it.
    std::vector<std::byte> start(column.array->data_offset);
    RETURN_IF_ERROR(file->ReadAt(0, start));
    const Result<NpyHeader> header = ParseNpyHeader(start);
    if (!header.ok() || *header != *column.array)
      return DataLoss("read " + Describe(id) + ": its ." + info_.fields[field].spec.name +
                      " file has another shape or dtype than that of the first sample");
    return file->ReadAt(column.array->data_offset, out);
  }

  Status ReadBytes(uint64_t id, size_t field, std::vector<std::byte>& out) const override {
    if (field == columns_.size()) {
      const Place place = Find(id);
      const std::string path = SampleName(*base_, shards_[place.shard], place.sample);
      const std::span<const std::byte> bytes = std::as_bytes(std::span(path));
      out.assign(bytes.begin(), bytes.end());
      return OkStatus();
    }
    ASSIGN_OR_RETURN(const std::unique_ptr<const RandomAccessFile> file, Open(Find(id), field));
    if (info_.fields[field].kind == FieldKind::kEncodedImage) return file->ReadAll(kMaxImageFileBytes, out);
    RETURN_IF_ERROR(ResizeForSample(file->size(), out));
    return file->ReadAt(0, out);
  }

  Result<std::unique_ptr<const RandomAccessFile>> OpenImage(uint64_t id, size_t field) const override {
    return Open(Find(id), field);
  }

  Prefetched Prefetch(uint64_t id, uint64_t count, size_t field) const override {
    Prefetched sum;
    if (field == columns_.size()) return sum;
    for (uint64_t i = 0; i < count; ++i) {
      const Place place = Find(id + i);
      if (columns_[field].parts[place.shard].empty()) continue;
      const auto file = Open(place, field);  // a read says why not
      if (file.ok()) sum.Add((*file)->Prefetch(0, std::min((*file)->size(), kMaxImageFileBytes)));
    }
    return sum;
  }

  // In a directory of many entries, the stamp does not cover the shards.
  bool IsCurrent() const override {
    return std::ranges::all_of(shards_, [this](const ShardIndex& shard) { return OpenShard(shard).ok(); });
  }

  std::string Describe(uint64_t id) const override {
    const Place place = Find(id);
    const ShardIndex& shard = shards_[place.shard];
    return EscapeName(base_->FullPath(shard.name)) + "[" + EscapeName(shard.keys[place.sample]) + "]";
  }

 private:
  struct Place {
    size_t shard;
    uint64_t sample;  // in the shard
  };

  Place Find(uint64_t id) const {
    PF_CHECK(id < info_.samples, "sample id out of range");
    const size_t shard = static_cast<size_t>(std::ranges::upper_bound(ends_, id) - ends_.begin());
    return {shard, id - (shard == 0 ? 0 : ends_[shard - 1])};
  }

  // kDataLoss if it is not what the index was made of.
  Result<std::unique_ptr<const RandomAccessFile>> OpenShard(const ShardIndex& shard) const {
    ASSIGN_OR_RETURN(std::unique_ptr<const RandomAccessFile> file, base_->OpenFile(shard.name));
    bool same = file->size() == shard.file_bytes && file->changed_ns() == shard.changed_ns;
    if (const std::optional<FileVersion> now = file->version(); now && shard.version) {
      // Not the device and the mount, which are others once the file system was mounted anew.
      same = same && now->inode == shard.version->inode && now->modified_ns == shard.version->modified_ns;
    }
    if (!same)
      return DataLoss(
          "read " + QuotePath(file->path()) +
          ": it was written to, replaced, or given other owners or permissions after the dataset was "
          "opened; open the dataset again");
    return file;
  }
  Result<std::unique_ptr<const RandomAccessFile>> Open(const Place& place, size_t field) const {
    PF_CHECK(field < columns_.size(), "field out of range");
    const ShardPart& part = columns_[field].parts[place.shard][place.sample];
    ASSIGN_OR_RETURN(std::unique_ptr<const RandomAccessFile> file, OpenShard(shards_[place.shard]));
    return std::make_unique<const FileRange>(std::move(file), part.offset, part.size);
  }

  Status ReadLabel(uint64_t id, const Place& place, size_t field, std::span<std::byte> out) const {
    const std::vector<int64_t>& labels = shards_[place.shard].labels;
    std::optional<int64_t> label;
    if (!labels.empty()) {
      label = labels[place.sample];
    } else {
      ASSIGN_OR_RETURN(const std::unique_ptr<const RandomAccessFile> file, Open(place, field));
      std::string text(std::min(file->size(), kMaxLabelBytes + 1), '\0');
      RETURN_IF_ERROR(file->ReadAt(0, std::as_writable_bytes(std::span(text))));
      label = ParseLabel(text);
      if (!label)
        return DataLoss("read " + Describe(id) + ": the text " + QuotePath(text) +
                        " of its .cls file is no integer");
    }
    PF_CHECK(out.size() == sizeof(*label), "a label is an int64 scalar");
    std::memcpy(out.data(), &*label, sizeof(*label));
    return OkStatus();
  }

  const std::shared_ptr<const Location> base_;
  const std::vector<ShardIndex> shards_;
  const std::vector<Column> columns_;
  const DatasetInfo info_;
  std::vector<uint64_t> ends_;  // by shard: the number of samples up to its end
};

// Purpose: makes fields of what the shards have. Borrows the location.
class FieldChooser {
 public:
  FieldChooser(const Location& base, std::vector<ShardIndex>& shards, DatasetInfo known)
      : info(std::move(known)), base_(base), shards_(shards) {}

  Status Choose() {
    std::vector<std::string> names;
    for (const ShardIndex& shard : shards_) {
      info.samples += shard.keys.size();
      passed_over_ += shard.passed_over;
      for (const auto& [name, parts] : shard.fields)
        if (std::ranges::find(names, name) == names.end()) names.push_back(name);
      if (names.size() > kMaxShardFields)
        return Fault("its files have more than " + std::to_string(kMaxShardFields) +
                     " extensions; a name ends at its first dot, and what follows is the kind of the file");
    }
    std::erase_if(shards_, [](const ShardIndex& shard) { return shard.keys.size() == 0; });
    if (info.samples == 0)
      return Fault("it has no samples: files named KEY.EXTENSION, such as 000017.jpg and 000017.cls" +
                   (passed_over_ == 0
                        ? ""
                        : "; " + std::to_string(passed_over_) + " files have no extension, or are hidden"));
    const auto rank = [](const std::string& name) {
      return std::pair(name == kShardImageField ? 0 : name == kShardLabelField ? 1 : 2, name);
    };
    std::ranges::sort(names, {}, rank);
    for (const std::string& name : names) RETURN_IF_ERROR(Add(name));
    if (info.fields.empty()) {
      const auto& [name, why] = info.left_out.front();
      return Fault("none of its files can be a field: " + QuotePath(name) + ": " + why);
    }
    uint64_t longest = 0;
    for (const ShardIndex& shard : shards_) {
      uint64_t sample = 0;  // of the longest key
      for (uint64_t i = 1; i < shard.keys.size(); ++i)
        if (shard.keys[i].size() > shard.keys[sample].size()) sample = i;
      longest = std::max<uint64_t>(longest, SampleName(base_, shard, sample).size());
    }
    info.fields.push_back(SamplePathField(longest));
    return OkStatus();
  }

  uint64_t passed_over() const { return passed_over_; }

  DatasetInfo info;
  std::vector<WebDataset::Column> columns;

 private:
  Status Fault(const std::string& reason) const {
    return InvalidArgument("webdataset " + QuotePath(base_.path()) + ": " + reason);
  }

  // Adds the field, or says why it is left out.
  Status Add(const std::string& name) {
    if (const std::string lacking = Lacking(name); !lacking.empty()) {
      if (name == kShardImageField || name == kShardLabelField) return Fault(lacking);
      info.left_out.emplace_back(name, lacking);
      return OkStatus();
    }
    Field field{{name, DType::kUnspecified, {}}, FieldKind::kEncodedImage};
    WebDataset::Column column;
    if (name == kShardLabelField) {
      field = {{name, DType::kInt64, {}}, FieldKind::kTensor};
    } else if (name == "npy" || name.ends_with(".npy")) {
      Result<NpyHeader> array = Array(name);
      if (!array.ok()) {
        if (array.status().code() != Code::kInvalidArgument) return array.status();
        info.left_out.emplace_back(name, array.status().message());
        return OkStatus();
      }
      field = {{name, array->dtype, array->shape}, FieldKind::kTensor};
      RETURN_IF_ERROR(field.spec.SampleBytes().status());
      column.array = *std::move(array);
    } else if (name != kShardImageField) {
      field = {{name, DType::kUint8, {static_cast<int64_t>(std::max<uint64_t>(1, Sizes(name).second))}},
               FieldKind::kRagged};
    }
    for (ShardIndex& shard : shards_) {
      std::vector<ShardPart>& parts = shard.fields.find(name)->second;
      const bool in_index = name == kShardLabelField && !shard.labels.empty();
      column.parts.push_back(in_index ? std::vector<ShardPart>() : std::move(parts));
    }
    info.fields.push_back(std::move(field));
    columns.push_back(std::move(column));
    return OkStatus();
  }

  // Names a sample without the field; empty if all have it.
  std::string Lacking(const std::string& name) const {
    for (const ShardIndex& shard : shards_) {
      const auto field = shard.fields.find(name);
      for (uint64_t i = 0; i < shard.keys.size(); ++i) {
        if (field != shard.fields.end() && field->second[i].exists()) continue;
        return "sample " + QuotePath(SampleName(base_, shard, i)) + " lacks its '" + name +
               "', which others have; the files of a sample must be neighbours (tar --sort=name)";
      }
    }
    return {};
  }

  // The smallest and the largest size of the field's files.
  std::pair<uint64_t, uint64_t> Sizes(const std::string& name) const {
    std::pair<uint64_t, uint64_t> sizes(UINT64_MAX, 0);
    for (const ShardIndex& shard : shards_)
      for (const ShardPart& part : shard.fields.find(name)->second)
        sizes = {std::min(sizes.first, part.size), std::max(sizes.second, part.size)};
    return sizes;
  }

  // The header of all .npy files of the field, by that of the first one. kInvalidArgument if they cannot be
  // batched.
  Result<NpyHeader> Array(const std::string& name) const {
    const auto [smallest, largest] = Sizes(name);
    if (smallest != largest)
      return InvalidArgument("its arrays have several sizes, and a batch needs one shape");
    const ShardPart& part = shards_.front().fields.find(name)->second.front();
    ASSIGN_OR_RETURN(std::unique_ptr<const RandomAccessFile> file, base_.OpenFile(shards_.front().name));
    if (part.size > file->size() || part.offset > file->size() - part.size)
      return DataLoss("read " + QuotePath(file->path()) + ": it changed while it was indexed");
    ASSIGN_OR_RETURN(NpyHeader header, ReadNpyHeader(FileRange(std::move(file), part.offset, part.size))
                                           .WithContext("sample " + QuotePath(shards_.front().keys[0])));
    if (header.big_endian || header.fortran_order)
      return InvalidArgument(
          "its arrays are big-endian or in Fortran order; store numpy.ascontiguousarray of them");
    if (header.shape.size() > kMaxSampleDims)
      return InvalidArgument("its arrays have more than " + std::to_string(kMaxSampleDims) + " dimensions");
    return header;
  }

  const Location& base_;
  std::vector<ShardIndex>& shards_;
  uint64_t passed_over_ = 0;
};

std::string FingerprintOf(const DatasetInfo& info, const std::vector<ShardIndex>& shards) {
  Fingerprint fingerprint;
  fingerprint.Add("webdataset").Add(info.samples).Add(uint64_t{info.fields.size()});
  for (const Field& field : info.fields) fingerprint.Add(field.spec);
  for (const ShardIndex& shard : shards) {
    fingerprint.Add(shard.name).Add(shard.keys.size());
    for (uint64_t i = 0; i < shard.keys.size(); ++i) fingerprint.Add(shard.keys[i]);
  }
  return fingerprint.Hex();
}

Result<std::vector<std::string>> ShardNames(const Location& base) {
  std::vector<std::string> names;
  const auto visit = [&](const DirectoryEntry& entry) -> Status {
    if (entry.kind == EntryKind::kDirectory || IsOfMacos(entry.name)) return OkStatus();
    const std::string path = QuotePath(base.FullPath(entry.name));
    if (HasExtension(entry.name, kCompressed))
      return InvalidArgument("shard " + path + " is compressed; uncompress it, or move it away");
    if (!HasExtension(entry.name, kShardExtensions)) return OkStatus();
    if (entry.kind == EntryKind::kDangling)
      return NotFound("shard " + path + " is a dangling symbolic link; repair or remove it");
    if (entry.kind != EntryKind::kFile)
      return InvalidArgument("shard " + path + " is not a regular file; move it away");
    if (names.size() == kMaxShards)
      return InvalidArgument("webdataset " + QuotePath(base.path()) + " has more than " +
                             std::to_string(kMaxShards) + " shards; make larger ones");
    names.emplace_back(entry.name);
    return OkStatus();
  };
  ASSIGN_OR_RETURN([[maybe_unused]] const NodeId id, base.List("", visit));
  if (names.empty())
    return InvalidArgument("webdataset " + QuotePath(base.path()) +
                           " holds no .tar file; name the directory that does");
  SortByName(names);
  return names;
}

class WebdatasetDatasetFormat final : public DatasetFormat {
 public:
  std::string_view name() const override { return "webdataset"; }
  std::optional<std::string> Recognise(const DatasetContents& contents,
                                       const ParameterMap& /*options*/) const override {
    if (!contents.is_directory)
      return HasExtension(contents.path, kShardExtensions) ? std::optional("a tar archive") : std::nullopt;
    if (contents.tar_file.empty()) return std::nullopt;
    return "tar archives (such as " + QuotePath(contents.tar_file) + ")";
  }
  Result<std::shared_ptr<const Dataset>> Open(std::shared_ptr<const Location> location,
                                              const DatasetContents& contents, DatasetInfo info,
                                              ParameterReader& /*options*/,
                                              IndexStore* store) const override {
    std::vector<std::string> names(1);
    if (contents.is_directory) {
      ASSIGN_OR_RETURN(names, ShardNames(*location));
    }
    ASSIGN_OR_RETURN(std::vector<ShardIndex> shards, IndexShards(*location, names, store));
    FieldChooser chooser(*location, shards, std::move(info));
    RETURN_IF_ERROR(chooser.Choose());
    chooser.info.fingerprint = FingerprintOf(chooser.info, shards);
    for (ShardIndex& shard : shards) shard.fields.clear();  // those that are left out
    spdlog::info("opened {}: {} samples in {} shards; {} files belong to none", QuotePath(location->path()),
                 chooser.info.samples, shards.size(), chooser.passed_over());
    return std::make_shared<const WebDataset>(std::move(location), std::move(shards),
                                              std::move(chooser.columns), std::move(chooser.info));
  }
};

}  // namespace

const DatasetFormat& WebdatasetFormat() {
  static const WebdatasetDatasetFormat format;
  return format;
}

}  // namespace pinfeed
