// SPDX-License-Identifier: Apache-2.0
#include "server/dataset/open_dataset.h"

#include <algorithm>
#include <cstdint>
#include <new>

#include "common/base/byte_size.h"
#include "common/base/quote.h"
#include "server/dataset/file_kinds.h"
#include "server/dataset/format.h"

namespace pinfeed {
namespace {

constexpr uint64_t kMaxClassBytes = uint64_t{16} << 20;

bool HasOption(const DatasetFormat& format, std::string_view option) {
  return std::ranges::find(format.options(), option) != format.options().end();
}

// The error for a directory of which no format was recognised.
Status UnknownDirectory(const DatasetContents& contents) {
  const std::string object = "detect the format of directory " + QuotePath(contents.path);
  const std::string wanted =
      "found neither a metadata.jsonl (manifest) nor .npy files (npy) nor .tar files (webdataset) nor class "
      "folders with images (image_folder)";
  if (!contents.bin_file.empty()) {
    return InvalidArgument(object + ": " + wanted + ", but " + QuotePath(contents.bin_file) +
                           "; if that holds tokens, name the file and set sequence_length");
  }
  if (!contents.unsupported.empty()) {
    return InvalidArgument(object + ": " + wanted + ", but " + QuotePath(contents.unsupported) + "; " +
                           std::string(AdviceFor(contents.unsupported)));
  }
  if (contents.other.empty())
    return InvalidArgument(object + ": it is empty; name the directory that holds the data");
  return InvalidArgument(object + ": " + wanted + ", but found " + QuotePath(contents.other) +
                         "; name the directory that holds the data");
}

Status UnknownFile(const DatasetContents& contents, const ParameterMap& options) {
  const std::string& path = contents.path;
  const std::string object = "detect the format of file " + QuotePath(path) + ": ";
  if (path.ends_with(".bin")) {
    return InvalidArgument(
        object +
        "a .bin file is read as tokens, which need a sequence_length: the number of tokens of a sample");
  }
  if (IsNamedAsImage(path)) {
    return InvalidArgument(object +
                           "it is one image; name the directory whose class folders hold the images "
                           "(<directory>/<class>/<image>)");
  }
  if (const std::string_view advice = AdviceFor(path); !advice.empty())
    return InvalidArgument(object + std::string(advice));
  return InvalidArgument(
      object +
      "a dataset is a .npy file, a .bin file of tokens, a manifest (.jsonl, .csv, .tsv), a .tar shard, a "
      "directory of .npy files or of shards, or one of class folders with images; if the file holds "
      "uint16 or uint32 tokens without a header, set format to tokens" +
      (options.contains("sequence_length") ? "" : " and a sequence_length") +
      "; other data are read in a Dataset of yours with pinfeed.DataLoader");
}

// Detects the format. Formats that have all the given options are tried first.
Result<const DatasetFormat*> Detect(const DatasetContents& contents, const ParameterMap& options) {
  std::string evidence;
  std::string names;
  std::vector<const DatasetFormat*> found;
  for (const bool with_options : {true, false}) {
    for (const DatasetFormat* const format : DatasetFormats()) {
      const bool has_all =
          std::ranges::all_of(options, [&](const auto& option) { return HasOption(*format, option.first); });
      if (with_options && !has_all) continue;
      const std::optional<std::string> recognised = format->Recognise(contents, options);
      if (!recognised) continue;
      evidence += (found.empty() ? "" : " and ") + *recognised;
      names += (found.empty() ? "" : " or ") + std::string(format->name());
      found.push_back(format);
    }
    if (!found.empty()) break;
  }
  // All images would have the label 0. Beside a folder of another name, a .json file may say anything.
  const bool by_name = contents.table.empty() && IsImagesName(contents.folder);
  const std::string& table = by_name ? contents.other_table : contents.table;
  if (names == "image_folder" && contents.folders == 1 && !table.empty()) {
    return InvalidArgument("detect the format of directory " + QuotePath(contents.path) +
                           ": it holds one folder (" + QuotePath(contents.folder) + ") and a table (" +
                           QuotePath(table) + "); if the table has the images and their labels, " +
                           (by_name ? std::string("convert it to .csv or .jsonl and open the result")
                                    : "open " + QuotePath(JoinPath(contents.path, table))) +
                           "; else set format to " + names);
  }
  if (found.size() == 1) return found.front();
  if (found.empty())
    return contents.is_directory ? UnknownDirectory(contents) : UnknownFile(contents, options);
  return InvalidArgument("detect the format of directory " + QuotePath(contents.path) + ": it holds " +
                         evidence + "; set format to " + names);
}

// Folders that wrap a dataset (DIR/dataset/cat, DIR/dataset/dog) would be one class: all labels would be 0.
// With format set, they are one.
Status CheckNotWrapped(const Location& location, const DatasetContents& contents) {
  constexpr int kMaxDepth = 16;  // links may lead round
  std::string inner = contents.folders == 1 ? contents.folder : "";
  for (int depth = 0; !inner.empty() && depth < kMaxDepth; ++depth) {
    for (const std::string_view table : {"metadata.jsonl", "metadata.csv"}) {
      const Result<NodeKind> kind = location.Kind(JoinPath(inner, table));
      if (!kind.ok() || *kind != NodeKind::kFile) continue;
      return InvalidArgument(
          "detect the format of directory " + QuotePath(contents.path) + ": its only folder, " +
          QuotePath(inner) + ", holds " + QuotePath(table) + ", which would be passed over; open " +
          QuotePath(JoinPath(contents.path, inner)) + ", or set format to image_folder if it is one class");
    }
    size_t folders = 0;
    bool has_image = false;
    std::string only;
    const auto visit = [&](const DirectoryEntry& entry) -> Status {
      if (entry.kind == EntryKind::kDirectory) {
        ++folders;
        only = entry.name;
      } else if (IsNamedAsImage(entry.name)) {
        has_image = true;
        return Status(Code::kCancelled, "it has an image");  // a listing may be long
      }
      return OkStatus();
    };
    const Result<NodeId> listed = location.List(inner, visit);
    if (has_image) return OkStatus();
    RETURN_IF_ERROR(listed.status());
    if (folders > 1) {
      return InvalidArgument(
          "detect the format of directory " + QuotePath(contents.path) + ": its only folder, " +
          QuotePath(inner) + ", holds " + std::to_string(folders) +
          " folders and no images, so that all samples would have the label 0; open " +
          QuotePath(JoinPath(contents.path, inner)) +
          " if its folders are the classes, or set format to image_folder if it is one class");
    }
    inner = only.empty() ? "" : JoinPath(inner, only);
  }
  return OkStatus();
}

// Every session gets the names, and so does the answer that lists the datasets.
Status CheckClasses(const std::vector<std::string>& classes) {
  uint64_t bytes = 0;
  for (const std::string& name : classes) bytes += name.size();
  if (bytes <= kMaxClassBytes) return OkStatus();
  return InvalidArgument("the names of its " + std::to_string(classes.size()) + " classes have " +
                         ByteSize(bytes) + ", and at most " + ByteSize(kMaxClassBytes) +
                         " can be told to trainers; use shorter names, or numbers as labels");
}

}  // namespace

Status CheckDatasetFormat(std::string_view format) {
  if (format.empty() || FindDatasetFormat(format) != nullptr) return OkStatus();
  return InvalidArgument("dataset format " + QuotePath(format) + " is unknown; known are " +
                         DatasetFormatNames(" and "));
}

void CheckDatasetOptions(const DatasetSpec& spec, Faults& faults) {
  const DatasetFormat* const chosen = FindDatasetFormat(spec.format);
  // Formats with unprintable characters were refused before.
  if (!spec.format.empty() && chosen == nullptr && EscapeName(spec.format) == spec.format)
    faults.Add("dataset.format", QuotePath(spec.format) + " is none of " + DatasetFormatNames(", "));
  for (const DatasetFormat* const format : DatasetFormats()) {
    ParameterMap own;
    for (const auto& [name, value] : spec.options) {
      if (!HasOption(*format, name)) continue;
      if (spec.format.empty() || format == chosen) {
        own.emplace(name, value);
      } else if (chosen == nullptr || !HasOption(*chosen, name)) {
        faults.Add("dataset." + name, "is for the format " + std::string(format->name()) + " only");
      }
    }
    if (own.empty() && format != chosen) continue;
    ParameterReader reader(own, "dataset", faults);
    // The configuration of a named dataset may give further options.
    format->CheckOptions(reader, format == chosen && spec.name.empty());
  }
}

Result<std::shared_ptr<const Dataset>> OpenDataset(std::shared_ptr<const Location> location,
                                                   const DatasetSpec& spec, IndexStore* store) {
  RETURN_IF_ERROR(CheckDatasetFormat(spec.format));
  ASSIGN_OR_RETURN(const DatasetContents contents, ListContents(*location));
  const DatasetFormat* format = FindDatasetFormat(spec.format);
  if (format == nullptr) {
    ASSIGN_OR_RETURN(format, Detect(contents, spec.options));
    if (format->name() == "image_folder") RETURN_IF_ERROR(CheckNotWrapped(*location, contents));
  }
  for (const auto& [name, value] : spec.options) {
    if (HasOption(*format, name)) continue;
    const DatasetFormat* const owner = FormatOfOption(name);
    return InvalidArgument("dataset " + QuotePath(location->path()) + " has format " +
                           std::string(format->name()) + ", but " + name + " belongs to " +
                           (owner == nullptr ? "no format" : std::string(owner->name())) + "; leave it out");
  }
  Faults faults;
  ParameterMap options = spec.options;
  ParameterReader reader(options, "dataset", faults);
  format->CheckOptions(reader, true);
  RETURN_IF_ERROR(faults.ToStatus().WithContext("open dataset " + QuotePath(location->path())));
  DatasetInfo info{.format = std::string(format->name()), .path = spec.path, .remote = location->remote()};
  try {
    ASSIGN_OR_RETURN(std::shared_ptr<const Dataset> dataset,
                     format->Open(std::move(location), contents, std::move(info), reader, store));
    RETURN_IF_ERROR(
        CheckClasses(dataset->info().classes).WithContext("open dataset " + QuotePath(contents.path)));
    return dataset;
  } catch (const std::bad_alloc&) {
    // The files determine the size of the index. If it does not fit, only this dataset is refused.
    return ResourceExhausted("open dataset " + QuotePath(contents.path) +
                             ": no memory for its index (std::bad_alloc); split the dataset, or give the "
                             "daemon more memory");
  }
}

}  // namespace pinfeed
