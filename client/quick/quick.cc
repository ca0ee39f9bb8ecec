// SPDX-License-Identifier: Apache-2.0
// pinfeed._quick: next() of a feed for the plain case, a ready batch in the middle of an epoch, in one call.
// Every other case is left to the package's Python code, which is the whole implementation and works without
// this module.
//
// In: addresses of libpinfeed's functions and of the memory through which the Python code calls them, so that
// both always see the same state. Out: `Batch` objects. Uses only Python's stable ABI, of 3.11 and later.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "client/quick/state.h"

namespace pinfeed {
namespace {

PyTypeObject* slot_type = nullptr;  // these live as long as the process
PyTypeObject* next_type = nullptr;
struct {
  PyObject *next_slowly, *failed, *epoch, *index, *skipped, *last_of_epoch, *slot;
} names;

struct Next {
  PyObject_HEAD State* state;
};

// A slot in use. Its end releases the batch, on any thread.
struct Slot {
  PyObject_HEAD pf_batch* batch;
  void* data;
  Next* owner;
};

struct Iterator {
  PyObject_HEAD Next* next;  // null until the Python code has said that the batch after its own may be plain
  uint64_t epoch;            // of that batch
  uint64_t disarmed;         // State::disarmed when it said so
  bool plain;                // it has said so in the call that is under way
};

void Free(PyObject* self) {
  PyTypeObject* const type = Py_TYPE(self);
  reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free))(self);
  Py_DECREF(type);
}

// ---- Slot ------------------------------------------------------------------------------------------------

void SlotDealloc(PyObject* self) {
  auto* const slot = reinterpret_cast<Slot*>(self);
  State& state = *slot->owner->state;
  --state.held;
  if (slot->batch != nullptr) state.release(slot->batch);
  Py_DECREF(slot->owner);
  Free(self);
}

int SlotBuffer(PyObject* self, Py_buffer* view, int flags) {
  auto* const slot = reinterpret_cast<Slot*>(self);
  const State& state = *slot->owner->state;
  return PyBuffer_FillInfo(view, self, slot->data, state.slot_bytes, state.read_only ? 1 : 0, flags);
}

PyObject* SlotAddress(PyObject* self, void* /*closure*/) {
  return PyLong_FromVoidPtr(reinterpret_cast<Slot*>(self)->data);
}

PyGetSetDef slot_attributes[] = {{"address", SlotAddress, nullptr, "of the slot's first byte", nullptr}, {}};

// ---- Next ------------------------------------------------------------------------------------------------

// Whether the attributes could be set.
bool Describe(PyObject* batch, const pf_batch_info& info, PyObject* slot) {
  const Ref epoch(PyLong_FromUnsignedLongLong(info.epoch));
  const Ref index(PyLong_FromUnsignedLongLong(info.index));
  const Ref skipped(PyLong_FromUnsignedLong(info.skipped));
  return epoch && index && skipped && PyObject_SetAttr(batch, names.epoch, epoch.get()) == 0 &&
         PyObject_SetAttr(batch, names.index, index.get()) == 0 &&
         PyObject_SetAttr(batch, names.skipped, skipped.get()) == 0 &&
         PyObject_SetAttr(batch, names.last_of_epoch, Py_False) == 0 &&
         (slot == nullptr || PyObject_SetAttr(batch, names.slot, slot) == 0);
}

// Returns the batch, tuple or dict of these tensors, which it takes.
Ref MakeOutput(const State& state, Ref* values, const pf_batch_info& info, PyObject* slot) {
  PyObject* const output = state.output.get();
  const auto count = static_cast<Py_ssize_t>(state.field_count);
  if (output != Py_None && PyTuple_Size(output) == count) {
    Ref fields(PyDict_New());
    for (Py_ssize_t i = 0; fields && i < count; ++i)
      if (PyDict_SetItem(fields.get(), PyTuple_GetItem(output, i), values[i].get()) != 0) return Ref();
    return fields;
  }
  auto* const type = reinterpret_cast<PyTypeObject*>(state.batch_type.get());
  const auto alloc = reinterpret_cast<allocfunc>(PyType_GetSlot(type, Py_tp_alloc));
  Ref batch(output == Py_None ? alloc(type, count) : PyTuple_New(count));
  for (Py_ssize_t i = 0; batch && i < count; ++i)
    if (PyTuple_SetItem(batch.get(), i, values[i].release()) != 0) return Ref();
  return !batch || output != Py_None || Describe(batch.get(), info, slot) ? std::move(batch) : Ref();
}

Ref MakeView(const State& state, const Field& field, PyObject* slot) {
  const Ref arguments(PyTuple_Pack(4, field.shape.get(), field.dtype.get(), slot, field.offset.get()));
  if (!arguments) return Ref();
  Ref tensor(PyObject_Call(state.array.get(), arguments.get(), nullptr));
  for (Py_ssize_t i = 0; tensor && i < PyTuple_Size(field.steps.get()); ++i)
    tensor = Ref(PyObject_CallFunctionObjArgs(PyTuple_GetItem(field.steps.get(), i), tensor.get(), nullptr));
  return tensor;
}

// Returns views of the slot, or copies. The batch in `out` belongs to their slot then. If it fails, with an
// exception, the batch is in `out` as before, and nothing is lost. A garbage collection or a mode of torch's
// functions may run Python code here, and so a signal handler: see State::taking. Without an exception, null
// then says that the batch is dropped, or in `out` for the Python code.
Ref MakeViews(Next* self) {
  State& state = *self->state;
  const pf_batch_info info = *state.info;
  const uint64_t disarmed = state.disarmed;
  auto* const slot = PyObject_New(Slot, slot_type);
  if (slot == nullptr) return Ref();
  const Ref owned(reinterpret_cast<PyObject*>(slot));
  Py_INCREF(reinterpret_cast<PyObject*>(self));
  slot->owner = self;
  slot->data = info.data;
  slot->batch = *state.out;
  ++state.held;
  *state.out = nullptr;
  state.taking = true;
  state.dropped = false;

  Ref values[kMaxFields];
  Ref batch;
  size_t made = 0;
  for (; made < state.field_count; ++made) {
    values[made] = MakeView(state, state.fields[made], owned.get());
    if (!values[made]) break;
  }
  if (made == state.field_count)
    batch = MakeOutput(state, values, info, state.copies ? Py_None : owned.get());
  if (state.dropped) return Ref();
  if (batch && state.disarmed == disarmed) return batch;
  *state.out = slot->batch;
  slot->batch = nullptr;
  return Ref();
}

// Returns tensors of the framework's, with their writing and the slot's release queued. Null without an
// exception: nothing was queued.
Ref WriteTensors(State& state) {
  const pf_batch_info info = *state.info;
  pf_batch* const taken = *state.out;
  const uint64_t disarmed = state.disarmed;
  Ref values[kMaxFields];
  void* pointers[kMaxFields];
  for (size_t i = 0; i < state.field_count; ++i) {
    const Field& field = state.fields[i];
    values[i] =
        Ref(PyObject_CallFunctionObjArgs(state.empty.get(), field.shape.get(), field.dtype.get(), nullptr));
    if (!values[i]) return Ref();
    const Ref address(PyObject_CallFunctionObjArgs(state.address.get(), values[i].get(), nullptr));
    if (!address) return Ref();
    pointers[i] = PyLong_AsVoidPtr(address.get());
    if (pointers[i] == nullptr && PyErr_Occurred() != nullptr) return Ref();
  }
  const Ref stream(PyObject_CallFunctionObjArgs(state.stream.get(), nullptr));
  if (!stream) return Ref();
  void* const native = PyLong_AsVoidPtr(stream.get());
  if (native == nullptr && PyErr_Occurred() != nullptr) return Ref();
  Ref batch = MakeOutput(state, values, info, nullptr);
  // The calls above may run Python code, in which a signal handler closes the feed or takes the batch.
  if (!batch || *state.out != taken || state.disarmed != disarmed) return Ref();
  if (state.write(taken, pointers, static_cast<uint32_t>(state.field_count), native) != PF_OK) return Ref();
  *state.out = nullptr;
  return batch;
}

bool IsPlain(const State& state) {
  const pf_batch_info& info = *state.info;
  return info.epoch == state.epoch && info.last_of_epoch == 0 && info.samples == state.samples &&
         info.held <= state.max_held;
}

// Returns the next batch. Null without an exception: it is for the Python code, perhaps in `out` already.
Ref Take(Next* self, const Iterator* iterator) {
  State& state = *self->state;
  if (state.armed_for != iterator || state.taking || *state.feed == nullptr || *state.out != nullptr)
    return Ref();
  if (PyObject_Size(state.messages.get()) != 0) return Ref();
  const Ref locked(PyObject_CallFunctionObjArgs(state.acquire.get(), Py_False, nullptr));
  if (locked.get() != Py_True) return Ref();  // another thread has the lock, or there is an exception
  const Ref alive = CopyOf(reinterpret_cast<PyObject*>(self));
  Ref batch;
  if (state.next(*const_cast<pf_feed**>(state.feed), PF_ONLY_LOOK, state.out, state.info) == PF_OK &&
      IsPlain(state))
    batch = state.write == nullptr ? MakeViews(self) : WriteTensors(state);
  state.taking = false;
  // Unlocking runs no Python code, but must not see an exception.
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  const Ref unlocked(PyObject_CallFunctionObjArgs(state.unlock.get(), nullptr));
  if (unlocked)
    PyErr_Restore(type, value, traceback);
  else
    batch = Ref();
  return batch;
}

PyObject* NextNew(PyTypeObject* type, PyObject* /*positional*/, PyObject* arguments) {
  State* const state = NewState(arguments);
  if (state == nullptr) return nullptr;
  const auto alloc = reinterpret_cast<allocfunc>(PyType_GetSlot(type, Py_tp_alloc));
  PyObject* const self = alloc(type, 0);
  if (self == nullptr)
    DeleteState(state);
  else
    reinterpret_cast<Next*>(self)->state = state;
  return self;
}

void NextDealloc(PyObject* self) {
  DeleteState(reinterpret_cast<Next*>(self)->state);
  Free(self);
}

PyObject* Disarm(PyObject* self, PyObject* /*none*/) {
  State& state = *reinterpret_cast<Next*>(self)->state;
  state.armed_for = nullptr;
  ++state.disarmed;
  Py_RETURN_NONE;
}

PyObject* Taking(PyObject* self, void* /*closure*/) {
  return PyBool_FromLong(reinterpret_cast<Next*>(self)->state->taking ? 1 : 0);
}

PyObject* Drop(PyObject* self, PyObject* /*none*/) {
  reinterpret_cast<Next*>(self)->state->dropped = true;
  Py_RETURN_NONE;
}

PyObject* Held(PyObject* self, void* /*closure*/) {
  return PyLong_FromSsize_t(reinterpret_cast<Next*>(self)->state->held);
}

int SetMaxHeld(PyObject* self, PyObject* value, void* /*closure*/) {
  const unsigned long most = value != nullptr ? PyLong_AsUnsignedLong(value) : 0;
  if (PyErr_Occurred() != nullptr) return -1;
  reinterpret_cast<Next*>(self)->state->max_held =
      static_cast<uint32_t>(std::min<unsigned long>(most, UINT32_MAX));
  return 0;
}

PyMethodDef next_methods[] = {
    {"disarm", Disarm, METH_NOARGS, "disarm(): what comes next is for the Python code."},
    {"drop", Drop, METH_NOARGS, "drop(): nobody gets the batch that is being made."},
    {}};
PyGetSetDef next_attributes[] = {
    {"taking", Taking, nullptr, "whether a batch is being made that the trainer does not have yet", nullptr},
    {"held", Held, nullptr, "the number of slots in use", nullptr},
    {"max_held", nullptr, SetMaxHeld, "the number of slots from which on the Python code copies", nullptr},
    {}};

// ---- Iterator --------------------------------------------------------------------------------------------

PyObject* IteratorNext(PyObject* self) {
  auto* const iterator = reinterpret_cast<Iterator*>(self);
  if (iterator->next != nullptr) {
    Ref batch = Take(iterator->next, iterator);
    if (batch) return batch.release();
    if (PyErr_Occurred() != nullptr) {
      PyObject *type, *value, *traceback;
      PyErr_Fetch(&type, &value, &traceback);
      const Ref told(PyObject_CallMethodObjArgs(self, names.failed, nullptr));
      PyErr_Restore(type, value, traceback);  // in place of what that may have raised
      return nullptr;
    }
  }
  iterator->plain = false;
  PyObject* const batch = PyObject_CallMethodObjArgs(self, names.next_slowly, nullptr);
  if (batch == nullptr || !iterator->plain) return batch;
  // Only here, where no signal handler can come between: the batch is on its way, and none is before the next
  // one. Another thread or a handler may have disarmed since the Python code has said that it may be plain.
  State& state = *iterator->next->state;
  if (iterator->disarmed == state.disarmed) {
    state.armed_for = iterator;
    state.epoch = iterator->epoch;
  }
  return batch;
}

// iterator.plain = next, epoch
int SetPlain(PyObject* self, PyObject* value, void* /*closure*/) {
  auto* const iterator = reinterpret_cast<Iterator*>(self);
  PyObject* next = nullptr;
  unsigned long long epoch = 0;
  if (value == nullptr || PyTuple_Check(value) == 0) {
    PyErr_SetString(PyExc_TypeError, "plain is a tuple");
    return -1;
  }
  if (PyArg_ParseTuple(value, "O!K", next_type, &next, &epoch) == 0) return -1;
  Py_INCREF(next);
  PyObject* const old = reinterpret_cast<PyObject*>(iterator->next);
  iterator->next = reinterpret_cast<Next*>(next);
  iterator->epoch = epoch;
  iterator->disarmed = iterator->next->state->disarmed;
  iterator->plain = true;
  Py_XDECREF(old);
  return 0;
}

PyGetSetDef iterator_attributes[] = {
    {"plain", nullptr, SetPlain, "(next, epoch): the batch after the one that is returned may be plain",
     nullptr},
    {}};

void IteratorDealloc(PyObject* self) {
  Py_XDECREF(reinterpret_cast<PyObject*>(reinterpret_cast<Iterator*>(self)->next));
  Free(self);
}

// ---- the module ------------------------------------------------------------------------------------------

PyTypeObject* MakeType(PyObject* module, const char* name, const char* attribute, int size,
                       unsigned int flags, PyType_Slot* slots) {
  PyType_Spec spec{name, size, 0, flags, slots};
  PyObject* const type = PyType_FromSpec(&spec);
  if (type == nullptr || PyModule_AddObjectRef(module, attribute, type) != 0) return nullptr;
  return reinterpret_cast<PyTypeObject*>(type);
}

bool Fill(PyObject* module) {
  const struct {
    PyObject** name;
    const char* text;
  } texts[] = {{&names.next_slowly, "_next_slowly"},
               {&names.failed, "_failed"},
               {&names.epoch, "epoch"},
               {&names.index, "index"},
               {&names.skipped, "skipped"},
               {&names.slot, "_slot"},
               {&names.last_of_epoch, "last_of_epoch"}};
  for (const auto& [name, text] : texts) {
    *name = PyUnicode_InternFromString(text);
    if (*name == nullptr) return false;
  }
  PyType_Slot slot_slots[] = {{Py_tp_dealloc, reinterpret_cast<void*>(SlotDealloc)},
                              {Py_bf_getbuffer, reinterpret_cast<void*>(SlotBuffer)},
                              {Py_tp_getset, slot_attributes},
                              {0, nullptr}};
  PyType_Slot next_slots[] = {{Py_tp_new, reinterpret_cast<void*>(NextNew)},
                              {Py_tp_dealloc, reinterpret_cast<void*>(NextDealloc)},
                              {Py_tp_methods, next_methods},
                              {Py_tp_getset, next_attributes},
                              {0, nullptr}};
  PyType_Slot iterator_slots[] = {{Py_tp_dealloc, reinterpret_cast<void*>(IteratorDealloc)},
                                  {Py_tp_iter, reinterpret_cast<void*>(PyObject_SelfIter)},
                                  {Py_tp_iternext, reinterpret_cast<void*>(IteratorNext)},
                                  {Py_tp_getset, iterator_attributes},
                                  {0, nullptr}};
  constexpr unsigned int kInternal = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION;
  slot_type = MakeType(module, "pinfeed._quick.Slot", "Slot", sizeof(Slot), kInternal, slot_slots);
  next_type = MakeType(module, "pinfeed._quick.Next", "Next", sizeof(Next), Py_TPFLAGS_DEFAULT, next_slots);
  return slot_type != nullptr && next_type != nullptr &&
         MakeType(module, "pinfeed._quick.Iterator", "Iterator", sizeof(Iterator),
                  Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, iterator_slots) != nullptr;
}

PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "pinfeed._quick", nullptr, -1, nullptr, nullptr, nullptr, nullptr, nullptr};

}  // namespace
}  // namespace pinfeed

PyMODINIT_FUNC PyInit__quick() {
  pinfeed::Ref module(PyModule_Create(&pinfeed::definition));
  if (!module || !pinfeed::Fill(module.get())) return nullptr;
  return module.release();
}
