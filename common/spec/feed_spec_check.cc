// SPDX-License-Identifier: Apache-2.0
#include "common/spec/feed_spec_check.h"

#include <algorithm>
#include <climits>
#include <cstdint>
#include <string_view>

#include "common/wire/shared_page.h"

namespace pinfeed {
namespace {

bool IsPrintable(std::string_view text) {
  return std::none_of(text.begin(), text.end(),
                      [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7F; });
}

void CheckDataset(const DatasetSpec& spec, Faults& faults) {
  CheckText(spec.name, kMaxNameBytes, "dataset.name", faults);
  if (spec.name.empty() && spec.path.empty()) faults.Add("dataset", "needs a name or a path");
  if (!spec.name.empty() && !spec.path.empty())
    faults.Add("dataset", "has both a name and a path; give one of them");
  if (spec.path.size() >= PATH_MAX) {
    faults.Add("dataset.path",
               "has " + std::to_string(spec.path.size()) + " bytes, more than a path can have");
  } else if (spec.path.find('\0') != std::string::npos) {
    faults.Add("dataset.path", "holds a NUL byte");
  } else if (!spec.path.empty() && spec.path.front() != '/') {
    faults.Add("dataset.path", "is not absolute; the daemon does not know the client's working directory");
  }
  CheckText(spec.format, kMaxNameBytes, "dataset.format", faults);
}

void CheckSharing(const FeedSpec& spec, Faults& faults) {
  CheckText(spec.group, kMaxGroupBytes, "group", faults);
  if (spec.sharing == Sharing::kExclusive) {
    if (!spec.group.empty()) faults.Add("group", "is for the sharings broadcast and queue only");
    if (spec.group_size > 1) faults.Add("group_size", "is for the sharings broadcast and queue only");
  } else if (spec.group.empty()) {
    faults.Add("group", "must name the group that shares the feed");
  }
}

bool Holds(const std::vector<std::string>& names, size_t count, const std::string& name) {
  const auto end = names.begin() + static_cast<std::ptrdiff_t>(count);
  return std::find(names.begin(), end, name) != end;
}

// Whether the dataset has them is for who knows its fields.
void CheckFieldNames(const std::string& list, const std::vector<std::string>& names, Faults& faults) {
  if (names.size() > kMaxNamedFields) {
    return faults.Add(list, "has " + std::to_string(names.size()) + " names, at most " +
                                std::to_string(kMaxNamedFields) + " are possible");
  }
  for (size_t i = 0; i < names.size(); ++i) {
    const std::string at = list + "[" + std::to_string(i) + "]";
    CheckText(names[i], kMaxNameBytes, at, faults);
    if (names[i].empty()) {
      faults.Add(at, "is empty; it must be the name of a field");
    } else if (Holds(names, i, names[i])) {
      faults.Add(at, "is listed twice");
    }
  }
}

void CheckFields(const FeedSpec& spec, Faults& faults) {
  CheckFieldNames("fields", spec.fields, faults);
  CheckFieldNames("masks", spec.masks, faults);
  CheckFieldNames("fields_unchanged", spec.fields_unchanged, faults);
  std::vector<std::string> padded;
  for (const PaddedField& field : spec.pad) {
    if (field.rows == 0)
      faults.Add("pad[" + std::to_string(padded.size()) + "]", "has 0 rows; it must be at least 1");
    padded.push_back(field.field);
  }
  CheckFieldNames("pad", padded, faults);
  if (spec.masks.size() > kMaxNamedFields) return;
  for (size_t i = 0; i < spec.fields_unchanged.size() && i < kMaxNamedFields; ++i) {
    if (Holds(spec.masks, spec.masks.size(), spec.fields_unchanged[i]))
      faults.Add("fields_unchanged[" + std::to_string(i) + "]",
                 "is in masks too; a field either follows the image or stays as it is");
  }
}

}  // namespace

void CheckText(const std::string& text, size_t limit, const std::string& field, Faults& faults) {
  if (text.size() > limit) {
    faults.Add(field, "has " + std::to_string(text.size()) + " bytes, at most " + std::to_string(limit) +
                          " are possible");
  } else if (!IsPrintable(text)) {
    faults.Add(field, "holds a control character");
  }
}

void CheckFeedSpec(const FeedSpec& spec, Faults& faults) {
  CheckDataset(spec.dataset, faults);
  if (spec.batch_size == 0) faults.Add("batch_size", "must be at least 1");
  if (spec.world_size == 0) faults.Add("world_size", "must be at least 1");
  if (spec.rank >= spec.world_size && spec.world_size != 0) {
    faults.Add("rank", std::to_string(spec.rank) + " is not below the world_size of " +
                           std::to_string(spec.world_size));
  }
  CheckFields(spec, faults);
  if (spec.slots != 0 && (spec.slots < kMinSlots || spec.slots > kMaxSlots)) {
    faults.Add("slots", std::to_string(spec.slots) + " is not within " + std::to_string(kMinSlots) + " to " +
                            std::to_string(kMaxSlots));
  }
  CheckSharing(spec, faults);
}

}  // namespace pinfeed
