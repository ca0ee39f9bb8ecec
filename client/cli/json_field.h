// SPDX-License-Identifier: Apache-2.0
// Reads fields of the daemon's JSON. protobuf writes 64-bit integers as strings, and an older daemon lacks
// newer fields.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

namespace pinfeed {

using Json = nlohmann::json;

// Returns the field as a number, or 0 if it is absent or not a number.
uint64_t UintField(const Json& object, const char* name);
double DoubleField(const Json& object, const char* name);
// Returns the field as text, or "" if it is absent or not a string.
std::string TextField(const Json& object, const char* name);
// Returns the field as a list, empty if it is absent.
const Json& ListField(const Json& object, const char* name);
const Json& ListField(const Json&& object, const char* name) = delete;  // the list would outlive its object
// Returns the feed of a daemon's status that this process is attached to, as a client of that name; null if
// there is none, as in another PID namespace.
Json OwnFeed(const Json& status, const std::string& client_name);

}  // namespace pinfeed
