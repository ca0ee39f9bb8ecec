// SPDX-License-Identifier: Apache-2.0
// The interface of a dataset format. Each format has its own files in server/dataset/formats and an entry in
// formats/registry.cc. In: a path and its options. Out: an open Dataset.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "common/spec/parameter_reader.h"
#include "server/dataset/dataset.h"
#include "server/dataset/index_store.h"
#include "server/storage/storage.h"

namespace pinfeed {

// What a path contains, in enough detail to tell the formats apart. For a directory, each member is the name
// of one entry of that kind, or empty if there is none. For a file, all members but `path` are empty.
struct DatasetContents {
  std::string path;
  bool is_directory = false;
  std::string npy_file;  // .npy
  std::string bin_file;  // .bin: tokens
  std::string tar_file;  // .tar
  std::string folder;    // a directory
  size_t folders = 0;
  std::string image;     // with an image's extension (IsNamedAsImage), decodable here or not
  std::string metadata;  // metadata.jsonl or metadata.csv
  bool both_metadata = false;
  std::string table;        // of another table (IsNamedAsTable), not hidden
  std::string other_table;  // of one that cannot be opened (IsNamedAsOtherTable), not hidden
  std::string unsupported;  // of an unsupported kind for which an error can give advice (AdviceFor)
  std::string other;        // of any other kind
};

// Lists the location, if it is a directory. kInvalidArgument if it is neither a file nor a directory.
Result<DatasetContents> ListContents(const Location& location);

// Purpose: detects, checks and opens datasets of one format. Threads: immutable.
class DatasetFormat {
 public:
  DatasetFormat() = default;
  virtual ~DatasetFormat() = default;
  DatasetFormat(const DatasetFormat&) = delete;
  DatasetFormat& operator=(const DatasetFormat&) = delete;

  virtual std::string_view name() const = 0;

  // The names of its options: fields of pinfeed.v1.DatasetSpec and keys of a dataset in the configuration.
  virtual std::span<const std::string_view> options() const { return {}; }
  // Checks the values of the options. With `complete`, a missing required option is a fault. Otherwise the
  // configuration of a named dataset may still add options.
  virtual void CheckOptions(ParameterReader& /*options*/, bool /*complete*/) const {}

  // If `contents` look like this format, returns the evidence for messages: "folders (such as 'cat')".
  virtual std::optional<std::string> Recognise(const DatasetContents& contents,
                                               const ParameterMap& options) const = 0;
  // `info` has what does not depend on the format: the rest is added. `store` has what earlier opens kept; it
  // may be null. Preconditions: CheckOptions found no fault; `contents` is ListContents(*location).
  virtual Result<std::shared_ptr<const Dataset>> Open(std::shared_ptr<const Location> location,
                                                      const DatasetContents& contents, DatasetInfo info,
                                                      ParameterReader& options, IndexStore* store) const = 0;
};

// All formats.
std::span<const DatasetFormat* const> DatasetFormats();
// Returns null if there is no format of that name.
const DatasetFormat* FindDatasetFormat(std::string_view name);
// Returns the format that has the option, or null.
const DatasetFormat* FormatOfOption(std::string_view option);
// The names of all formats, for messages. With the separator " and ": "image_folder, npy and tokens".
std::string DatasetFormatNames(std::string_view last_separator);

}  // namespace pinfeed
