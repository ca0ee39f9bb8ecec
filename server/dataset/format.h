// SPDX-License-Identifier: Apache-2.0
// One dataset format. Each is its own files in server/dataset/formats and a line in formats/registry.cc.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "common/spec/feed_spec.h"
#include "common/spec/parameter_reader.h"
#include "server/dataset/dataset.h"
#include "server/storage/storage.h"

namespace pinfeed {

// What lies at a place: enough to tell the formats apart. Of a directory one name of each kind; empty: none.
struct Contents {
  std::string path;
  bool is_directory = false;
  std::string array;     // .npy
  std::string flat;      // .bin
  std::string folder;    // a directory
  std::string image;     // named as an image, of a kind that is decoded or not
  std::string metadata;  // metadata.jsonl or metadata.csv
  std::string unread;    // of a kind for which there is advice (AdviceFor)
  std::string other;
};

// Lists a directory; of a file there is nothing but its path.
Result<Contents> LookAt(const Location& location);

// Purpose: how one format is told apart, checked and opened. Threads: immutable.
class DatasetFormat {
 public:
  DatasetFormat() = default;
  virtual ~DatasetFormat() = default;
  DatasetFormat(const DatasetFormat&) = delete;
  DatasetFormat& operator=(const DatasetFormat&) = delete;

  virtual std::string_view name() const = 0;

  // The names of its options: fields of pinfeed.v1.DatasetSpec and keys of a dataset in the configuration.
  virtual std::span<const std::string_view> options() const { return {}; }
  // Checks their values. `complete`: nobody adds options later, so what is needed must be there.
  virtual void CheckOptions(ParameterReader& /*options*/, bool /*complete*/) const {}

  // What there is at the place that this format is made of ("folders (such as 'cat')"); nothing: it is not
  // this format.
  virtual std::optional<std::string> Recognise(const Contents& contents,
                                               const ParameterMap& options) const = 0;
  // Preconditions: CheckOptions found no fault; `contents` are the location's.
  virtual Result<std::shared_ptr<const Dataset>> Open(std::shared_ptr<const Location> location,
                                                      const Contents& contents,
                                                      const DatasetSpec& spec) const = 0;
};

// All of them.
std::span<const DatasetFormat* const> DatasetFormats();
// Null: there is none of that name.
const DatasetFormat* FindDatasetFormat(std::string_view name);
// Null: no format has the option.
const DatasetFormat* FormatOfOption(std::string_view option);
// "image_folder, npy and tokens"
std::string DatasetFormatNames(std::string_view last_separator);

}  // namespace pinfeed
