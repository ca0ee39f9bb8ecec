// SPDX-License-Identifier: Apache-2.0
#include "server/dataset/open_dataset.h"

#include <algorithm>

#include "common/base/quote.h"
#include "server/dataset/file_kinds.h"
#include "server/dataset/formats/image_folder.h"
#include "server/dataset/formats/npy.h"
#include "server/dataset/formats/tokens.h"
#include "server/storage/storage.h"

namespace pinfeed {
namespace {

constexpr std::string_view kImageFolder = kDatasetFormats[0];
constexpr std::string_view kNpy = kDatasetFormats[1];
constexpr std::string_view kTokens = kDatasetFormats[2];
constexpr std::string_view kNpyExtension = ".npy";
constexpr std::string_view kFlatExtension = ".bin";

// What a directory holds, by one name of each kind.
struct Contents {
  std::string array;
  std::string flat;
  std::string folder;
  std::string image;
  std::string unread;  // of a kind for which there is advice
  std::string other;
};

Result<Contents> Look(const Location& base) {
  Contents contents;
  const auto visit = [&](const DirectoryEntry& entry) -> Status {
    if (entry.kind == EntryKind::kDirectory && AdviceFor(entry.name).empty()) {
      contents.folder = entry.name;
    } else if (entry.name.ends_with(kNpyExtension)) {
      contents.array = entry.name;
    } else if (entry.name.ends_with(kFlatExtension)) {
      contents.flat = entry.name;
    } else if (IsNamedAsImage(entry.name)) {
      contents.image = entry.name;
    } else if (!AdviceFor(entry.name).empty()) {
      contents.unread = entry.name;
    } else {
      contents.other = entry.name;
    }
    return OkStatus();
  };
  ASSIGN_OR_RETURN([[maybe_unused]] const NodeId id, base.List("", visit));
  return contents;
}

// Taking one file of several would leave the others out without a word.
Status TokensInDirectory(const Location& base, bool arrays) {
  const std::string path = QuotePath(base.path());
  const std::string joined = QuotePath(base.path() + std::string(arrays ? kNpyExtension : kFlatExtension));
  const std::string how = arrays ? "numpy.save(" + joined +
                                       ", numpy.concatenate([numpy.load(f) for f in sorted(glob.glob(" +
                                       QuotePath(base.path() + "/*.npy") + "))])) in Python"
                                 : "cat " + path + "/*.bin > " + joined;
  return InvalidArgument("tokens dataset " + path +
                         " is a directory, and a token stream is one file: name the file, or join several in "
                         "their order (" +
                         how + ") and open that");
}

Result<std::string_view> FormatOfDirectory(const Location& base, bool has_sequence_length) {
  ASSIGN_OR_RETURN(const Contents contents, Look(base));
  const std::string object = "detect the format of directory " + QuotePath(base.path());
  if (has_sequence_length && (!contents.array.empty() || !contents.flat.empty()))
    return TokensInDirectory(base, contents.flat.empty());
  if (!contents.array.empty() && !contents.folder.empty()) {
    return InvalidArgument(object + ": it holds .npy files (such as " + QuotePath(contents.array) +
                           ") and folders (such as " + QuotePath(contents.folder) +
                           "); set format to npy or image_folder");
  }
  if (!contents.array.empty()) return kNpy;
  if (!contents.folder.empty() || !contents.image.empty()) return kImageFolder;  // which wants class folders
  const std::string wanted = "found neither .npy files (npy) nor class folders with images (image_folder)";
  if (!contents.flat.empty()) {
    return InvalidArgument(object + ": " + wanted + ", but " + QuotePath(contents.flat) +
                           "; if that holds tokens, name the file and set sequence_length");
  }
  if (!contents.unread.empty()) {
    return InvalidArgument(object + ": " + wanted + ", but " + QuotePath(contents.unread) + "; " +
                           std::string(AdviceFor(contents.unread)));
  }
  if (contents.other.empty())
    return InvalidArgument(object + ": it is empty; name the directory that holds the data");
  return InvalidArgument(object + ": " + wanted + ", but found " + QuotePath(contents.other) +
                         "; name the directory that holds the data");
}

Result<std::string_view> FormatOfFile(const Location& base, bool has_sequence_length) {
  const std::string& path = base.path();
  if (path.ends_with(kNpyExtension)) return has_sequence_length ? kTokens : kNpy;
  const bool flat = path.ends_with(kFlatExtension);
  if (flat && has_sequence_length) return kTokens;
  const std::string object = "detect the format of file " + QuotePath(path) + ": ";
  if (flat) {
    return InvalidArgument(
        object +
        "a .bin file is taken for tokens, which need a sequence_length: set how many tokens "
        "a sample has");
  }
  if (IsNamedAsImage(path)) {
    return InvalidArgument(object +
                           "it is one image; name the directory whose class folders hold the images "
                           "(<directory>/<class>/<image>)");
  }
  if (const std::string_view advice = AdviceFor(path); !advice.empty())
    return InvalidArgument(object + std::string(advice));
  return InvalidArgument(object +
                         "a dataset is a .npy file, a .bin file of tokens, a directory of .npy files or one "
                         "of class folders with images; if the file holds uint16 or uint32 tokens without a "
                         "header, set format to tokens" +
                         (has_sequence_length ? "" : " and a sequence_length"));
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
  ASSIGN_OR_RETURN(std::shared_ptr<const Location> base, ResolveLocation(spec.path, allowed_roots));
  return OpenDatasetAt(std::move(base), spec);
}

Result<std::shared_ptr<const Dataset>> OpenDatasetAt(std::shared_ptr<const Location> location,
                                                     const DatasetSpec& spec) {
  RETURN_IF_ERROR(CheckDatasetFormat(spec.format));
  const Location& base = *location;
  ASSIGN_OR_RETURN(const NodeKind kind, base.Kind(""));
  if (kind == NodeKind::kOther) {
    return InvalidArgument("open dataset " + QuotePath(base.path()) +
                           ": it is neither a file nor a directory");
  }
  const bool is_directory = kind == NodeKind::kDirectory;
  std::string_view format = spec.format;
  if (format.empty()) {
    ASSIGN_OR_RETURN(format, is_directory ? FormatOfDirectory(base, spec.sequence_length > 0)
                                          : FormatOfFile(base, spec.sequence_length > 0));
  }
  if (format != kTokens && (spec.sequence_length > 0 || spec.stride > 0 || spec.token_dtype)) {
    return InvalidArgument(
        "dataset " + QuotePath(base.path()) + " has format " + std::string(format) +
        ", but sequence_length, stride and token_dtype are for tokens only; leave them out");
  }
  if (format == kTokens && is_directory) {
    ASSIGN_OR_RETURN(const Contents contents, Look(base));
    return TokensInDirectory(base, contents.flat.empty() && !contents.array.empty());
  }
  if (format == kTokens) return OpenTokens(base, spec);
  if (format == kNpy) return is_directory ? OpenNpyDirectory(base, spec.path) : OpenNpyFile(base, spec.path);
  if (!is_directory) {
    return InvalidArgument("image folder " + QuotePath(base.path()) +
                           " is a file; name the directory that holds the class folders");
  }
  return OpenImageFolder(std::move(location), spec.path);
}

}  // namespace pinfeed
