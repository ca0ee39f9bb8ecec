// SPDX-License-Identifier: Apache-2.0
#include "client/cli/json_field.h"

#include <unistd.h>

#include <cstdlib>

namespace pinfeed {
namespace {

const Json* Find(const Json& object, const char* name) {
  const auto found = object.find(name);
  return found == object.end() ? nullptr : &*found;
}

}  // namespace

uint64_t UintField(const Json& object, const char* name) {
  const Json* field = Find(object, name);
  if (field == nullptr) return 0;
  if (field->is_string()) return std::strtoull(field->get_ref<const std::string&>().c_str(), nullptr, 10);
  return field->is_number() ? field->get<uint64_t>() : 0;
}

double DoubleField(const Json& object, const char* name) {
  const Json* field = Find(object, name);
  return field != nullptr && field->is_number() ? field->get<double>() : 0;
}

std::string TextField(const Json& object, const char* name) {
  const Json* field = Find(object, name);
  return field != nullptr && field->is_string() ? field->get<std::string>() : std::string();
}

const Json& ListField(const Json& object, const char* name) {
  static const Json kEmpty = Json::array();
  const Json* field = Find(object, name);
  return field != nullptr && field->is_array() ? *field : kEmpty;
}

Json OwnFeed(const Json& status, const std::string& client_name) {
  for (const Json& feed : ListField(status, "feeds")) {
    for (const Json& session : ListField(feed, "sessions")) {
      if (UintField(session, "pid") == static_cast<uint64_t>(::getpid()) &&
          TextField(session, "client_name") == client_name)
        return feed;
    }
  }
  return nullptr;
}

}  // namespace pinfeed
