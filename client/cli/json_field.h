// SPDX-License-Identifier: Apache-2.0
// Reading the daemon's JSON: protobuf writes 64-bit integers as strings, and an older daemon lacks newer
// fields.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

namespace pinfeed {

using Json = nlohmann::json;

// The field as a number, 0 when it is absent or no number.
uint64_t UintField(const Json& object, const char* name);
double DoubleField(const Json& object, const char* name);
// The field as text, empty when it is absent or none.
std::string TextField(const Json& object, const char* name);
// The field as a list, an empty one when it is absent.
const Json& ListField(const Json& object, const char* name);
const Json& ListField(const Json&& object, const char* name) = delete;  // the list would outlive its object

}  // namespace pinfeed
