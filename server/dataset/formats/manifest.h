// SPDX-License-Identifier: Apache-2.0
// The format "manifest": a table with one row a sample, some of whose columns name image files beside it. In:
// a .jsonl, .csv or .tsv file, or a directory with Hugging Face's metadata.jsonl or metadata.csv. Out: fields
// "image" (a file's bytes), "label", and the other columns of numbers.
#pragma once

#include <memory>
#include <string>

#include "server/dataset/dataset.h"
#include "server/storage/storage.h"

namespace pinfeed {

struct ManifestOptions {
  std::string image;  // the column with the images' paths; empty: "file_name" if there is one, else no image
  std::string label;  // the column that becomes "label"; empty: "label" if there is one
};

// Opens the table `name` in `folder`; paths of images are relative to the folder. Columns of integers become
// int64, of other numbers float64, of true and false bool, of lists of numbers of one length tensors. A label
// of texts becomes their place in the order of Python's sorted(), and the texts the dataset's classes. Other
// columns of text, and those with missing values, are left out: DatasetInfo::left_out says why.
// kInvalidArgument names the line, or the column and those that there are.
Result<std::shared_ptr<const Dataset>> OpenManifest(std::shared_ptr<const Location> folder,
                                                    const std::string& name, std::string user_path,
                                                    const ManifestOptions& options);

}  // namespace pinfeed
