// SPDX-License-Identifier: Apache-2.0
// The format "manifest": a table with one row per sample. One column may hold paths of image files, in the
// table's folder or below it. In: a .jsonl, .csv or .tsv file, or a directory with Hugging Face's
// metadata.jsonl or metadata.csv. Out: the fields "image" (the file's bytes), "label", and every other column
// of numbers.
#pragma once

#include <memory>
#include <string>

#include "server/dataset/dataset.h"
#include "server/storage/storage.h"

namespace pinfeed {

struct ManifestOptions {
  std::string image;  // the column of image paths; empty: "file_name" if it exists, else there are no images
  std::string label;  // the column that becomes "label"; empty: "label" if it exists, else there is no label
};

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
// `user_path` becomes DatasetInfo::path. kInvalidArgument names the line, or the column and the columns that
// exist.
Result<std::shared_ptr<const Dataset>> OpenManifest(std::shared_ptr<const Location> folder,
                                                    const std::string& name, std::string user_path,
                                                    const ManifestOptions& options);

}  // namespace pinfeed
