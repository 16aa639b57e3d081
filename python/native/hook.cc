// SPDX-License-Identifier: Apache-2.0
#include "hook.h"

#include <cstring>

namespace telltale::native {
namespace {

PyObject* g_method_type = nullptr;

HookObject* AsHook(PyObject* self) { return reinterpret_cast<HookObject*>(self); }

PyObject* New(PyTypeObject* type, PyObject* args, PyObject*) {
  PyObject *original = nullptr, *name = Py_None, *tell = Py_None;
  int kind = 0;
  unsigned long long least_ns = 0;
  if (!PyArg_ParseTuple(args, "Oi|OKO:Hook", &original, &kind, &name, &least_ns, &tell)) {
    return nullptr;
  }
  if (kind < 0 || kind >= static_cast<int>(HookKind::kCount)) {
    PyErr_SetString(PyExc_ValueError, "unknown kind of hook");
    return nullptr;
  }
  const bool needs_name =
      kind == static_cast<int>(HookKind::kTimed) || kind == static_cast<int>(HookKind::kMove);
  if (name != Py_None ? PyUnicode_Check(name) == 0 : needs_name) {
    PyErr_SetString(PyExc_TypeError, "a hook's name must be a str");
    return nullptr;
  }
  using Alloc = PyObject* (*)(PyTypeObject*, Py_ssize_t);
  auto alloc = reinterpret_cast<Alloc>(PyType_GetSlot(type, Py_tp_alloc));
  PyObject* self = alloc(type, 0);
  if (self == nullptr) return nullptr;
  Py_INCREF(original);
  AsHook(self)->original = original;
  if (name != Py_None) {
    Py_INCREF(name);
    PyUnicode_InternInPlace(&name);
    AsHook(self)->name = name;
  }
  if (tell != Py_None) {
    Py_INCREF(tell);
    AsHook(self)->tell = tell;
  }
  AsHook(self)->least_ns = least_ns;
  AsHook(self)->vectorcall = HookFunction(static_cast<HookKind>(kind));
  return self;
}

int Traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(AsHook(self)->original);
  Py_VISIT(AsHook(self)->tell);
  return 0;
}

int Clear(PyObject* self) {
  Py_CLEAR(AsHook(self)->original);
  Py_CLEAR(AsHook(self)->name);
  Py_CLEAR(AsHook(self)->tell);
  return 0;
}

void Dealloc(PyObject* self) {
  PyObject_GC_UnTrack(self);
  if (AsHook(self)->weak_references != nullptr) PyObject_ClearWeakRefs(self);
  Clear(self);
  PyTypeObject* type = Py_TYPE(self);
  using Free = void (*)(void*);
  reinterpret_cast<Free>(PyType_GetSlot(type, Py_tp_free))(self);
  Py_DECREF(type);
}

PyObject* Call(PyObject* self, PyObject* args, PyObject* kwargs) {
  // Only for callers that bypass vectorcall.
  const Py_ssize_t count = PyTuple_Size(args);
  const Py_ssize_t named = kwargs == nullptr ? 0 : PyDict_Size(kwargs);
  auto** stack = static_cast<PyObject**>(
      PyMem_Malloc(sizeof(PyObject*) * static_cast<size_t>(count + named + 1)));
  if (stack == nullptr) return PyErr_NoMemory();
  Ref names(named > 0 ? PyTuple_New(named) : nullptr);
  for (Py_ssize_t i = 0; i < count; ++i) stack[i] = PyTuple_GetItem(args, i);
  if (named > 0 && names) {
    PyObject *key = nullptr, *value = nullptr;
    Py_ssize_t position = 0, i = 0;
    while (PyDict_Next(kwargs, &position, &key, &value) != 0) {
      Py_INCREF(key);
      PyTuple_SetItem(names.get(), i, key);
      stack[count + i++] = value;
    }
  }
  PyObject* result = nullptr;
  if (named == 0 || names) {
    result = AsHook(self)->vectorcall(self, stack, static_cast<size_t>(count), names.get());
  }
  PyMem_Free(stack);
  return result;
}

PyObject* DescrGet(PyObject* self, PyObject* object, PyObject*) {
  if (object == nullptr || object == Py_None) {
    Py_INCREF(self);
    return self;
  }
  return PyObject_CallFunctionObjArgs(g_method_type, self, object, nullptr);
}

bool IsOwn(const char* name) {
  return std::strcmp(name, "__wrapped__") == 0 || std::strcmp(name, "__get__") == 0 ||
         std::strcmp(name, "__call__") == 0 || std::strncmp(name, "__reduce", 8) == 0;
}

PyObject* GetAttr(PyObject* self, PyObject* name) {
  Ref bytes(PyUnicode_AsUTF8String(name));
  if (!bytes) return nullptr;
  if (IsOwn(PyBytes_AsString(bytes.get()))) return PyObject_GenericGetAttr(self, name);
  return PyObject_GetAttr(AsHook(self)->original, name);
}

int SetAttr(PyObject* self, PyObject* name, PyObject* value) {
  return PyObject_SetAttr(AsHook(self)->original, name, value);
}

PyObject* Repr(PyObject* self) { return PyObject_Repr(AsHook(self)->original); }

// As a key, or compared, a hook is what it wraps: a table of functions that was made before it was
// put there (of a tensor subclass, of torch.compile) still finds it.
Py_hash_t Hash(PyObject* self) { return PyObject_Hash(AsHook(self)->original); }

PyObject* RichCompare(PyObject* self, PyObject* other, int operation) {
  PyObject* compared = Py_TYPE(other) == Py_TYPE(self) ? AsHook(other)->original : other;
  return PyObject_RichCompare(AsHook(self)->original, compared, operation);
}

/// The object that `module`.`qualified` names now, or null without an exception. New reference.
PyObject* Resolve(PyObject* module, PyObject* qualified) {
  PyObject* modules = PyImport_GetModuleDict();  // Borrowed.
  PyObject* object = PyDict_GetItemWithError(modules, module);
  Ref parts(object != nullptr ? PyObject_CallMethod(qualified, "split", "s", ".") : nullptr);
  if (!parts || PyList_Check(parts.get()) == 0) {
    PyErr_Clear();
    return nullptr;
  }
  Py_INCREF(object);
  for (Py_ssize_t i = 0; i < PyList_Size(parts.get()) && object != nullptr; ++i) {
    PyObject* next = PyObject_GetAttr(object, PyList_GetItem(parts.get(), i));
    Py_DECREF(object);
    object = next;
  }
  PyErr_Clear();
  return object;
}

// Nothing of ours travels with a user's objects. A hook that stands where the original stood
// pickles by that name, as the original would; any other, and those of __main__ (which cloudpickle
// sends by value), as the original itself.
PyObject* Reduce(PyObject* self, PyObject*) {
  PyObject* original = AsHook(self)->original;
  Ref module(PyObject_GetAttrString(original, "__module__"));
  Ref qualified(module ? PyObject_GetAttrString(original, "__qualname__") : nullptr);
  PyErr_Clear();
  if (qualified && PyUnicode_Check(module.get()) && PyUnicode_Check(qualified.get()) &&
      PyUnicode_CompareWithASCIIString(module.get(), "__main__") != 0) {
    Ref there(Resolve(module.get(), qualified.get()));
    if (there.get() == self) {
      Py_INCREF(qualified.get());
      return qualified.get();
    }
  }
  Ref library(PyImport_ImportModule("operator"));
  if (!library) return nullptr;
  Ref getter(PyObject_CallMethod(library.get(), "itemgetter", "i", 0));
  if (!getter) return nullptr;
  return Py_BuildValue("(O((O)))", getter.get(), original);
}

PyMethodDef kMethods[] = {
    {"__reduce_ex__", Reduce, METH_O, "Pickles as the original."},
    {"__reduce__", Reduce, METH_NOARGS, "Pickles as the original."},
    {nullptr, nullptr, 0, nullptr},
};

PyMemberDef kMembers[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(HookObject, vectorcall), READONLY, nullptr},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(HookObject, weak_references), READONLY, nullptr},
    {"__wrapped__", T_OBJECT_EX, offsetof(HookObject, original), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr},
};

PyType_Slot kSlots[] = {
    {Py_tp_new, reinterpret_cast<void*>(New)},
    {Py_tp_dealloc, reinterpret_cast<void*>(Dealloc)},
    {Py_tp_traverse, reinterpret_cast<void*>(Traverse)},
    {Py_tp_clear, reinterpret_cast<void*>(Clear)},
    {Py_tp_call, reinterpret_cast<void*>(Call)},
    {Py_tp_descr_get, reinterpret_cast<void*>(DescrGet)},
    {Py_tp_getattro, reinterpret_cast<void*>(GetAttr)},
    {Py_tp_setattro, reinterpret_cast<void*>(SetAttr)},
    {Py_tp_repr, reinterpret_cast<void*>(Repr)},
    {Py_tp_hash, reinterpret_cast<void*>(Hash)},
    {Py_tp_richcompare, reinterpret_cast<void*>(RichCompare)},
    {Py_tp_methods, kMethods},
    {Py_tp_members, kMembers},
    {0, nullptr},
};

PyType_Spec kSpec = {
    "telltale._probe.Hook",
    sizeof(HookObject),
    0,
    static_cast<unsigned>(Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | kTypeMethodDescriptor |
                          kTypeHaveVectorcall),
    kSlots,
};

}  // namespace

PyObject* MakeHookType() {
  Ref types(PyImport_ImportModule("types"));
  if (!types) return nullptr;
  if (g_method_type == nullptr) g_method_type = PyObject_GetAttrString(types.get(), "MethodType");
  if (g_method_type == nullptr || !InitFrameworkHooks()) return nullptr;
  return PyType_FromSpec(&kSpec);
}

}  // namespace telltale::native
