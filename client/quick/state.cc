// SPDX-License-Identifier: Apache-2.0
#include "client/quick/state.h"

#include <cstdlib>
#include <new>

namespace pinfeed {
namespace {

template <typename Function>
bool ReadAddress(PyObject* arguments, const char* key, Function* out) {
  PyObject* const value = PyDict_GetItemString(arguments, key);
  if (value == nullptr) return false;
  *out = reinterpret_cast<Function>(PyLong_AsVoidPtr(value));
  return PyErr_Occurred() == nullptr;
}

Ref ReadObject(PyObject* arguments, const char* key) {
  return CopyOf(PyDict_GetItemString(arguments, key));
}

bool ReadNumber(PyObject* arguments, const char* key, Py_ssize_t* out) {
  PyObject* const value = PyDict_GetItemString(arguments, key);
  if (value == nullptr) return false;
  *out = PyLong_AsSsize_t(value);
  return PyErr_Occurred() == nullptr;
}

bool ReadFields(PyObject* arguments, State* state) {
  PyObject* const list = PyDict_GetItemString(arguments, "fields");
  if (list == nullptr || PyList_Check(list) == 0 || PyList_Size(list) > static_cast<Py_ssize_t>(kMaxFields))
    return false;
  for (Py_ssize_t i = 0; i < PyList_Size(list); ++i) {
    PyObject* const one = PyList_GetItem(list, i);
    if (PyTuple_Check(one) == 0 || PyTuple_Size(one) != 4) return false;
    state->fields[state->field_count++] = {CopyOf(PyTuple_GetItem(one, 0)), CopyOf(PyTuple_GetItem(one, 1)),
                                           CopyOf(PyTuple_GetItem(one, 2)), CopyOf(PyTuple_GetItem(one, 3))};
  }
  return true;
}

// Next(feed=, out=, info=, next=, release=, kept=, ...): addresses are numbers, everything else objects; see
// `State`.
bool Read(PyObject* arguments, State* state) {
  Py_ssize_t samples = 0;
  Py_ssize_t max_held = 0;
  state->kept = ReadObject(arguments, "kept");
  state->acquire = ReadObject(arguments, "acquire");
  state->unlock = ReadObject(arguments, "release_lock");
  state->messages = ReadObject(arguments, "messages");
  state->batch_type = ReadObject(arguments, "batch_type");
  state->output = ReadObject(arguments, "output");
  const bool common =
      ReadAddress(arguments, "feed", &state->feed) && ReadAddress(arguments, "out", &state->out) &&
      ReadAddress(arguments, "info", &state->info) && ReadAddress(arguments, "next", &state->next) &&
      ReadAddress(arguments, "release", &state->release) && state->kept && state->acquire && state->unlock &&
      state->messages && state->batch_type && PyType_Check(state->batch_type.get()) != 0 && state->output &&
      ReadNumber(arguments, "samples", &samples) && ReadNumber(arguments, "max_held", &max_held) &&
      ReadFields(arguments, state);
  if (!common) return false;
  state->samples = static_cast<uint32_t>(samples);
  state->max_held = static_cast<uint32_t>(max_held);
  if (ReadAddress(arguments, "write", &state->write)) {
    state->empty = ReadObject(arguments, "empty");
    state->address = ReadObject(arguments, "address");
    state->stream = ReadObject(arguments, "stream");
    return state->empty && state->address && state->stream;
  }
  state->copies = PyDict_GetItemString(arguments, "copies") == Py_True;
  state->read_only = PyDict_GetItemString(arguments, "read_only") == Py_True;
  state->array = ReadObject(arguments, "array");
  return state->array && ReadNumber(arguments, "slot_bytes", &state->slot_bytes);
}

}  // namespace

// Not by `new`, for which a library would have to be there that Python does not need.
State* NewState(PyObject* arguments) {
  void* const memory = std::malloc(sizeof(State));
  if (memory == nullptr) {
    PyErr_NoMemory();
    return nullptr;
  }
  auto* const state = new (memory) State;
  if (arguments != nullptr && Read(arguments, state)) return state;
  DeleteState(state);
  if (PyErr_Occurred() == nullptr)
    PyErr_SetString(PyExc_ValueError, "an argument is missing or is none of those that it can be");
  return nullptr;
}

void DeleteState(State* state) {
  state->~State();
  std::free(state);
}

}  // namespace pinfeed
