// SPDX-License-Identifier: Apache-2.0
#include "server/dataset/format.h"

#include <algorithm>

#include "common/base/quote.h"
#include "server/dataset/file_kinds.h"

namespace pinfeed {

Result<DatasetContents> ListContents(const Location& location) {
  DatasetContents contents;
  contents.path = location.path();
  ASSIGN_OR_RETURN(const NodeKind kind, location.Kind(""));
  if (kind == NodeKind::kOther) {
    return InvalidArgument("open dataset " + QuotePath(location.path()) +
                           ": it is neither a file nor a directory");
  }
  contents.is_directory = kind == NodeKind::kDirectory;
  if (!contents.is_directory) return contents;
  const auto visit = [&](const DirectoryEntry& entry) -> Status {
    if (entry.kind == EntryKind::kDirectory ? entry.name == "__MACOSX" : IsOfMacos(entry.name))
      return OkStatus();
    if (entry.kind == EntryKind::kDirectory && AdviceFor(entry.name).empty()) {
      contents.folder = entry.name;
      ++contents.folders;
    } else if (IsMetadataName(entry.name)) {
      contents.both_metadata = !contents.metadata.empty();
      contents.metadata = entry.name;
    } else if (HasExtension(entry.name, kNpyExtensions)) {
      contents.npy_file = entry.name;
    } else if (entry.name.ends_with(".bin")) {
      contents.bin_file = entry.name;
    } else if (HasExtension(entry.name, kShardExtensions)) {
      contents.tar_file = entry.name;
    } else if (IsNamedAsImage(entry.name)) {
      contents.image = entry.name;
    } else if (!AdviceFor(entry.name).empty()) {
      contents.unsupported = entry.name;
      const bool hidden = entry.name.starts_with('.');
      if (IsNamedAsTable(entry.name) && !hidden) contents.table = entry.name;
      if (IsNamedAsOtherTable(entry.name) && !hidden) contents.other_table = entry.name;
    } else {
      contents.other = entry.name;
    }
    return OkStatus();
  };
  ASSIGN_OR_RETURN([[maybe_unused]] const NodeId id, location.List("", visit));
  return contents;
}

const DatasetFormat* FindDatasetFormat(std::string_view name) {
  for (const DatasetFormat* const format : DatasetFormats())
    if (format->name() == name) return format;
  return nullptr;
}

const DatasetFormat* FormatOfOption(std::string_view option) {
  for (const DatasetFormat* const format : DatasetFormats())
    if (std::ranges::find(format->options(), option) != format->options().end()) return format;
  return nullptr;
}

std::string DatasetFormatNames(std::string_view last_separator) {
  const auto formats = DatasetFormats();
  std::string names;
  for (size_t i = 0; i < formats.size(); ++i) {
    if (i > 0) names += i + 1 == formats.size() ? last_separator : ", ";
    names += formats[i]->name();
  }
  return names;
}

}  // namespace pinfeed
