// SPDX-License-Identifier: Apache-2.0
#include "server/source/open_dataset.h"

#include <algorithm>

#include "common/quote.h"
#include "server/source/directory_walk.h"
#include "server/source/image_folder.h"
#include "server/source/npy.h"
#include "server/source/rooted_file.h"
#include "server/source/tokens.h"

namespace pinfeed {
namespace {

constexpr std::string_view kImageFolder = kDatasetFormats[0];
constexpr std::string_view kNpy = kDatasetFormats[1];
constexpr std::string_view kTokens = kDatasetFormats[2];
constexpr std::string_view kNpyExtension = ".npy";
constexpr std::string_view kFlatExtension = ".bin";

Result<std::string_view> FormatOfDirectory(const RootedPath& base) {
  std::string array;
  std::string folder;
  const auto visit = [&](const DirectoryEntry& entry) -> Status {
    if (entry.kind == EntryKind::kDirectory) {
      folder = entry.name;
    } else if (entry.name.ends_with(kNpyExtension)) {
      array = entry.name;
    }
    return OkStatus();
  };
  ASSIGN_OR_RETURN([[maybe_unused]] const NodeId id, ScanDirectory(base, "", visit));
  const std::string object = "detect the format of directory " + QuotePath(base.path());
  if (!array.empty() && !folder.empty()) {
    return InvalidArgument(object + ": it holds .npy files (such as " + QuotePath(array) +
                           ") and folders (such as " + QuotePath(folder) +
                           "); set format to npy or image_folder");
  }
  if (!array.empty()) return kNpy;
  if (!folder.empty()) return kImageFolder;
  return InvalidArgument(object +
                         ": found neither .npy files (npy) nor class folders with images (image_folder)");
}

Result<std::string_view> FormatOfFile(const RootedPath& base, bool has_sequence_length) {
  if (base.path().ends_with(kNpyExtension)) return has_sequence_length ? kTokens : kNpy;
  if (base.path().ends_with(kFlatExtension) && has_sequence_length) return kTokens;
  return InvalidArgument("detect the format of file " + QuotePath(base.path()) +
                         ": looked for .npy (npy; or tokens, with sequence_length) and .bin (tokens, with "
                         "sequence_length); rename "
                         "the file, set sequence_length or set format");
}

}  // namespace

Status CheckDatasetFormat(std::string_view format) {
  const bool known =
      std::find(kDatasetFormats.begin(), kDatasetFormats.end(), format) != kDatasetFormats.end();
  if (format.empty() || known) return OkStatus();
  return InvalidArgument("dataset format " + QuotePath(format) +
                         " is unknown; known are image_folder, npy and tokens");
}

Result<std::shared_ptr<const Dataset>> OpenDataset(const DatasetSpec& spec,
                                                   const std::vector<std::string>& allowed_roots) {
  RETURN_IF_ERROR(CheckDatasetFormat(spec.format));
  ASSIGN_OR_RETURN(RootedPath base, RootedPath::Resolve(spec.path, allowed_roots));
  ASSIGN_OR_RETURN(const NodeKind kind, base.Kind(""));
  if (kind == NodeKind::kOther) {
    return InvalidArgument("open dataset " + QuotePath(base.path()) +
                           ": it is neither a file nor a directory");
  }
  const bool is_directory = kind == NodeKind::kDirectory;
  std::string_view format = spec.format;
  if (format.empty()) {
    ASSIGN_OR_RETURN(format,
                     is_directory ? FormatOfDirectory(base) : FormatOfFile(base, spec.sequence_length > 0));
  }
  if (format != kTokens && (spec.sequence_length > 0 || spec.stride > 0 || spec.token_dtype)) {
    return InvalidArgument(
        "dataset " + QuotePath(base.path()) + " has format " + std::string(format) +
        ", but sequence_length, stride and token_dtype are for tokens only; leave them out");
  }
  if (format == kTokens) return OpenTokens(base, spec);
  if (format == kNpy) return is_directory ? OpenNpyDirectory(base, spec.path) : OpenNpyFile(base, spec.path);
  if (!is_directory) {
    return InvalidArgument("image folder " + QuotePath(base.path()) +
                           " is a file; name the directory that holds the class folders");
  }
  return OpenImageFolder(std::move(base), spec.path);
}

}  // namespace pinfeed
