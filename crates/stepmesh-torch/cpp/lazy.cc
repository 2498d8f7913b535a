// A backend of PyTorch's lazy core (torch/csrc/lazy) that hands everything to Rust. Graphs are
// lowered to TorchScript by the core's own nodes, whose values are then told to Rust one by one.

#include "lazy.h"

#include <ATen/ATen.h>
#include <torch/csrc/jit/ir/constants.h>
#include <torch/csrc/jit/ir/ir.h>
#include <torch/csrc/lazy/backend/backend_interface.h>
#include <torch/csrc/lazy/core/config.h>
#include <torch/csrc/lazy/core/lazy_graph_executor.h>
#include <torch/csrc/lazy/core/metrics.h>
#include <torch/csrc/lazy/core/ir_builder.h>
#include <torch/csrc/lazy/ts_backend/ops/device_data.h>
#include <torch/csrc/lazy/ts_backend/ts_backend_impl.h>
#include <torch/csrc/lazy/ts_backend/ts_lowering_context.h>

#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "guard.h"
#include "kernels.h"

namespace stepmesh {
namespace {

using torch::lazy::BackendData;
using torch::lazy::BackendDataPtr;
using torch::lazy::BackendDevice;
using torch::lazy::BackendDeviceType;
using torch::lazy::Computation;
using torch::lazy::ComputationPtr;
using torch::lazy::LoweringContext;
using torch::lazy::Node;
using torch::lazy::Output;
using torch::lazy::Shape;
using torch::lazy::TSData;
using torch::lazy::Util;

// Set once, before the backend is registered.
const StepmeshLazyHooks* hooks = nullptr;

// A type of its own, so that nothing that the core keeps for each device is shared with another
// backend of this process.
struct DeviceType : BackendDeviceType {
  DeviceType() : BackendDeviceType(static_cast<int8_t>(at::kPrivateUse1)) {}
  std::string toString() const override { return "STEPMESH"; }
};

BackendDevice device_of(int64_t ordinal) {
  return BackendDevice(std::make_shared<DeviceType>(), ordinal);
}

StepmeshLazyType type_of(at::ScalarType dtype, at::IntArrayRef sizes) {
  StepmeshLazyType type{static_cast<int32_t>(dtype), static_cast<int32_t>(sizes.size()), {}};
  TORCH_CHECK(sizes.size() <= std::size(type.dims), "a value of ", sizes.size(),
              " dimensions, at most ", std::size(type.dims), " are supported");
  std::copy(sizes.begin(), sizes.end(), type.dims);
  return type;
}

StepmeshLazyType type_of(const Shape& shape) { return type_of(shape.scalar_type(), shape.sizes()); }

StepmeshLazyType unknown_type() { return StepmeshLazyType{-1, -1, {}}; }

// A value on a device. The base is what the core's own lowering expects of its data.
class Data : public TSData {
 public:
  Data(const Shape& shape, const BackendDevice& device) : TSData(shape, device) {}

  // A scalar is typed as one in the graphs, so that the core finds the right overloads.
  Data(const at::Scalar& value, const BackendDevice& device) : TSData(value, device) {}

  ~Data() override = default;

  void Assign(const BackendData& other) override {
    raw_ = static_cast<const Data&>(other).raw_;
  }

  bool HasValue() const override { return raw_ != nullptr; }

  // Takes a value of Rust's.
  void take(void* raw) { raw_ = std::shared_ptr<void>(raw, hooks->data_release); }

  const void* raw() const {
    TORCH_CHECK(raw_ != nullptr, "the value is not computed yet");
    return raw_.get();
  }

 private:
  std::shared_ptr<void> raw_;
};

void upload(Data& data, const at::Tensor& tensor) {
  const auto host = tensor.to(at::kCPU).contiguous();
  const auto type = type_of(host.scalar_type(), host.sizes());
  void* raw = nullptr;
  check([&](char* message, size_t cap) {
    return hooks->data_from_host(data.device().ordinal(), &type, host.const_data_ptr(), host.nbytes(),
                                 &raw, message, cap);
  });
  data.take(raw);
}

class Program : public Computation {
 public:
  Program(void* raw, std::vector<Shape> parameters, std::vector<std::string> names, Shape result)
      : raw_(raw, hooks->computation_release),
        parameters_(std::move(parameters)),
        names_(std::move(names)),
        result_(std::move(result)) {}

  int parameters_size() const override { return static_cast<int>(parameters_.size()); }
  const std::vector<Shape>& parameter_shapes() const override { return parameters_; }
  const std::vector<std::string>& parameter_names() const override { return names_; }
  // Of the first result; the others are known to Rust.
  const Shape& result_shape() const override { return result_; }

  const std::string to_string() const override {
    uint64_t len = 0;
    std::string text;
    for (int round = 0; round < 2; ++round) {
      text.resize(len);
      check([&](char* message, size_t cap) {
        return hooks->computation_text(raw_.get(), text.data(), text.size(), &len, message, cap);
      });
    }
    return text;
  }

  const void* raw() const { return raw_.get(); }
  size_t results = 0;

 private:
  std::shared_ptr<void> raw_;
  std::vector<Shape> parameters_;
  std::vector<std::string> names_;
  Shape result_;
};

class Lowering : public torch::lazy::TSLoweringContext {
 public:
  Lowering(const std::string& name, BackendDevice device)
      : TSLoweringContext(name, std::move(device)), name_(name) {}

  Lowering(const std::string& name, BackendDevice device, c10::ArrayRef<const Node*> post_order,
           Util::EmissionMap emit_status)
      : TSLoweringContext(name, std::move(device), post_order, std::move(emit_status)),
        name_(name) {
    for (const Node* node : post_order) note_shapes(*node);
  }

  size_t AddResult(const Output& output) override {
    auto* value = GetOutputOp(output);
    results_.emplace_back(value, output.shape());
    return results_.size() - 1;
  }

  ComputationPtr Build() override {
    void* raw = nullptr;
    check([&](char* message, size_t cap) {
      return hooks->graph_new(name_.c_str(), device_.ordinal(), &raw, message, cap);
    });
    graph_ = raw;
    // Released unless it is finished.
    std::unique_ptr<void, void (*)(void*)> held(raw, hooks->graph_release);
    std::vector<Shape> parameters;
    std::vector<std::string> names;
    tell_parameters(parameters, names);
    for (torch::jit::Node* node : graph()->nodes()) tell_node(*node);
    for (const auto& [value, shape] : results_) {
      const auto type = type_of(shape);
      const uint32_t id = id_of(value);
      check([&](char* message, size_t cap) {
        return hooks->graph_result(graph_, id, &type, message, cap);
      });
    }
    void* computation = nullptr;
    check([&, taken = held.release()](char* message, size_t cap) {
      return hooks->graph_finish(taken, &computation, message, cap);
    });
    const Shape result = results_.empty() ? Shape() : results_.front().second;
    auto program = std::make_shared<Program>(computation, std::move(parameters), std::move(names),
                                             result);
    program->results = results_.size();
    return program;
  }

 private:
  // A TorchScript graph knows no shapes; the lazy nodes behind it do.
  void note_shapes(const Node& node) {
    if (node.op() == torch::lazy::tensor_list_opkind) return;
    const auto shapes = node.shapes();
    for (size_t i = 0; i < shapes.size() && i < node.num_outputs(); ++i) {
      shapes_.insert_or_assign(GetOutputOp(Output(&node, i)), shapes[i]);
    }
  }

  void tell_parameters(std::vector<Shape>& parameters, std::vector<std::string>& names) {
    const auto inputs = graph()->inputs();
    TORCH_CHECK(inputs.size() == parameters_.size(), "a graph of ", inputs.size(),
                " inputs for ", parameters_.size(), " values");
    for (size_t i = 0; i < inputs.size(); ++i) {
      const auto& data = static_cast<const Data&>(*parameters_[i]);
      const auto type = type_of(data.shape());
      const int32_t is_scalar = data.scalar.has_value() ? 1 : 0;
      ids_[inputs[i]] = made([&](uint32_t* id, char* message, size_t cap) {
        return hooks->graph_parameter(graph_, &type, is_scalar, id, message, cap);
      });
      parameters.push_back(data.shape());
      names.push_back(inputs[i]->debugName());
    }
  }

  void tell_node(torch::jit::Node& node) {
    switch (node.kind()) {
      case c10::prim::Constant:
        ids_[node.output()] = tell_constant(torch::jit::toIValue(node.output()).value_or(c10::IValue()));
        return;
      case c10::prim::ListConstruct:
      case c10::prim::TupleConstruct:
        ids_[node.output()] = tell_list(ids_of(node.inputs()));
        return;
      default:
        tell_call(node);
    }
  }

  void tell_call(torch::jit::Node& node) {
    const auto* schema = node.maybeSchema();
    std::string name = node.kind().toQualString();
    if (schema != nullptr && !schema->overload_name().empty()) {
      name += "." + schema->overload_name();
    }
    const auto inputs = ids_of(node.inputs());
    std::vector<StepmeshLazyType> outputs;
    for (torch::jit::Value* output : node.outputs()) {
      const auto known = shapes_.find(output);
      outputs.push_back(known == shapes_.end() ? unknown_type() : type_of(known->second));
    }
    const uint32_t first = made([&](uint32_t* id, char* message, size_t cap) {
      return hooks->graph_call(graph_, name.c_str(), inputs.data(),
                               static_cast<uint32_t>(inputs.size()), outputs.data(),
                               static_cast<uint32_t>(outputs.size()), id, message, cap);
    });
    for (size_t i = 0; i < node.outputs().size(); ++i) {
      ids_[node.outputs()[i]] = first + static_cast<uint32_t>(i);
    }
  }

  uint32_t tell_constant(const c10::IValue& constant) {
    if (constant.isTensor() && constant.toTensor().defined() && constant.toTensor().dim() == 0) {
      // Sizes and indices, which the core writes as tensors.
      return tell_constant(c10::IValue(constant.toTensor().item()));
    }
    TORCH_CHECK(!constant.isTensor(), "a constant tensor in a graph is not supported");
    return made([&](uint32_t* id, char* message, size_t cap) {
      if (constant.isInt()) return hooks->graph_int(graph_, constant.toInt(), id, message, cap);
      if (constant.isDouble()) {
        return hooks->graph_double(graph_, constant.toDouble(), id, message, cap);
      }
      if (constant.isBool()) return hooks->graph_bool(graph_, constant.toBool(), id, message, cap);
      if (constant.isString()) {
        return hooks->graph_text(graph_, constant.toStringRef().c_str(), id, message, cap);
      }
      if (constant.isList()) {
        std::vector<uint32_t> items;
        for (const c10::IValue& item : constant.toListRef()) items.push_back(tell_constant(item));
        *id = tell_list(items);
        return 0;
      }
      // None, and what no operation of ours looks at: devices, layouts, generators.
      return hooks->graph_none(graph_, id, message, cap);
    });
  }

  uint32_t tell_list(const std::vector<uint32_t>& items) {
    return made([&](uint32_t* id, char* message, size_t cap) {
      return hooks->graph_list(graph_, items.data(), static_cast<uint32_t>(items.size()), id, message,
                               cap);
    });
  }

  template <class Function>
  uint32_t made(Function&& function) {
    uint32_t id = 0;
    check([&](char* message, size_t cap) { return function(&id, message, cap); });
    return id;
  }

  uint32_t id_of(torch::jit::Value* value) const {
    const auto known = ids_.find(value);
    TORCH_CHECK(known != ids_.end(), "a value that no node gives: %", value->debugName());
    return known->second;
  }

  std::vector<uint32_t> ids_of(at::ArrayRef<torch::jit::Value*> values) const {
    std::vector<uint32_t> ids;
    for (torch::jit::Value* value : values) ids.push_back(id_of(value));
    return ids;
  }

  std::string name_;
  void* graph_ = nullptr;
  std::vector<std::pair<torch::jit::Value*, Shape>> results_;
  std::unordered_map<torch::jit::Value*, Shape> shapes_;
  std::unordered_map<torch::jit::Value*, uint32_t> ids_;
};

class Backend : public torch::lazy::BackendImplInterface {
 public:
  void PrepareToExit() const override {
    check([](char* message, size_t cap) { return hooks->prepare_to_exit(message, cap); });
  }

  void SetRngSeed(size_t seed) const override {
    check([&](char* message, size_t cap) { return hooks->set_rng_seed(seed, message, cap); });
  }

  // The core's own, whose nodes lower to TorchScript.
  const torch::lazy::IrBuilder* GetIrBuilder() const override {
    return torch::lazy::GetTSBackendImpl()->GetIrBuilder();
  }

  BackendDataPtr MakeComputationDataFromTensor(const at::Tensor& tensor, const Shape& shape,
                                               const BackendDevice& device) const override {
    auto data = std::make_shared<Data>(shape, device);
    upload(*data, tensor.to(shape.scalar_type()));
    return data;
  }

  BackendDataPtr MakeComputationDataFromScalar(const at::Scalar& scalar,
                                               const BackendDevice& device) const override {
    auto data = std::make_shared<Data>(scalar, device);
    upload(*data, at::scalar_tensor(scalar, at::TensorOptions().dtype(scalar.type())));
    return data;
  }

  BackendDataPtr CreateDataPlaceholder(const BackendDevice& device,
                                       const Shape& shape) const override {
    return std::make_shared<Data>(shape, device);
  }

  BackendDataPtr GetComputationDataFromNode(const Node* node) const override {
    const auto* data = dynamic_cast<const torch::lazy::DeviceData*>(node);
    return data == nullptr ? nullptr : data->data();
  }

  at::Tensor MakeTensorFromComputationData(
      const BackendDataPtr data, std::optional<at::ScalarType> logical_type) const override {
    const auto& value = static_cast<const Data&>(*data);
    const Shape& shape = value.shape();
    auto tensor = at::empty(shape.sizes(), at::TensorOptions().dtype(shape.scalar_type()));
    check([&](char* message, size_t cap) {
      return hooks->data_to_host(value.raw(), tensor.mutable_data_ptr(), tensor.nbytes(), message,
                                 cap);
    });
    return logical_type.has_value() ? tensor.to(*logical_type) : tensor;
  }

  std::unique_ptr<LoweringContext> CreateLoweringContext(
      const std::string& name, BackendDevice device, c10::ArrayRef<const Node*> post_order,
      Util::EmissionMap emit_status) const override {
    return std::make_unique<Lowering>(name, std::move(device), post_order, std::move(emit_status));
  }

  std::unique_ptr<LoweringContext> CreateLoweringContext(const std::string& name,
                                                         BackendDevice device) const override {
    return std::make_unique<Lowering>(name, std::move(device));
  }

  std::vector<std::string> GetCompilationDevices(
      const std::string& device, c10::ArrayRef<std::string> devices) const override {
    return devices.empty() ? std::vector<std::string>{device}
                           : std::vector<std::string>(devices.begin(), devices.end());
  }

  std::vector<ComputationPtr> Compile(std::vector<ComputationPtr> instances) const override {
    for (const auto& instance : instances) {
      const auto& program = static_cast<const Program&>(*instance);
      check([&](char* message, size_t cap) {
        return hooks->computation_compile(program.raw(), message, cap);
      });
    }
    return instances;
  }

  std::vector<BackendDataPtr> ExecuteComputation(ComputationPtr computation,
                                                 c10::ArrayRef<BackendDataPtr> arguments,
                                                 const BackendDevice& device) const override {
    const auto& program = static_cast<const Program&>(*computation);
    std::vector<const void*> inputs;
    for (const auto& argument : arguments) {
      inputs.push_back(static_cast<const Data&>(*argument).raw());
    }
    std::vector<void*> outputs(program.results, nullptr);
    check([&](char* message, size_t cap) {
      return hooks->computation_execute(program.raw(), device.ordinal(), inputs.data(),
                                        static_cast<uint32_t>(inputs.size()), outputs.data(),
                                        static_cast<uint32_t>(outputs.size()), message, cap);
    });
    std::vector<BackendDataPtr> results;
    for (void* output : outputs) {
      // The core assigns it to a placeholder, which has the shape.
      auto data = std::make_shared<Data>(Shape(), device);
      data->take(output);
      results.push_back(std::move(data));
    }
    return results;
  }

  std::shared_ptr<BackendDeviceType> GetDefaultDeviceType() const override {
    return std::make_shared<DeviceType>();
  }

  void SetDefaultDeviceType(int8_t type) override {
    TORCH_CHECK(type == DeviceType().type, "this backend has one type of device, ", DeviceType().type);
  }

  int64_t GetDefaultDeviceOrdinal() const override { return default_ordinal_; }

  void SetDefaultDeviceOrdinal(int64_t ordinal) override {
    TORCH_CHECK(ordinal >= 0 && ordinal < device_count(), "there is no device ", ordinal);
    default_ordinal_ = ordinal;
  }

  at::DeviceType EagerFallbackDeviceType() const override { return at::kCPU; }

  std::vector<BackendDevice> GetBackendDevices() const override {
    std::vector<BackendDevice> devices;
    for (int64_t i = 0; i < device_count(); ++i) devices.push_back(device_of(i));
    return devices;
  }

  BackendDevice GetBackendDevice(c10::Device device) const override {
    return device_of(device.has_index() ? device.index() : default_ordinal_);
  }

  std::string GetComputationBackendText(const ComputationPtr computation) const override {
    return computation->to_string();
  }

 private:
  int64_t device_count() const {
    int64_t count = 0;
    check([&](char* message, size_t cap) { return hooks->device_count(&count, message, cap); });
    return count;
  }

  int64_t default_ordinal_ = 0;
};

// Takes the failure that the core kept for a device.
void forget_failure(const BackendDevice& device) noexcept {
  try {
    torch::lazy::LazyGraphExecutor::Get()->WaitDeviceOps({device});
  } catch (...) {
    // That failure.
  }
}

BackendDevice lazy_device(int64_t ordinal) {
  return torch::lazy::atenDeviceToBackendDevice(
      c10::Device(at::kLazy, static_cast<c10::DeviceIndex>(ordinal)));
}

}  // namespace
}  // namespace stepmesh

extern "C" {

// Registers the backend; `table` lives as long as the process. Once.
int stepmesh_lazy_register(const StepmeshLazyHooks* table, char* message, size_t cap) {
  return stepmesh::guarded(message, cap, [&] {
    TORCH_CHECK(stepmesh::hooks == nullptr, "the lazy backend is registered already");
    stepmesh::hooks = table;
    // Registers the lazy kernels with the dispatcher, and its own backend, which ours replaces.
    torch::lazy::InitTorchScriptBackend();
    stepmesh::add_kernels(table->can_translate);
    static auto* backend = new stepmesh::Backend();
    static auto* registrar = new torch::lazy::BackendRegistrar(backend);
    (void)registrar;
  });
}

// Whose backend the core uses from here on: ours, or the reference on TorchScript. For comparing;
// no lazy tensor may be alive.
int stepmesh_lazy_use_reference(int32_t is_reference, char* message, size_t cap) {
  return stepmesh::guarded(message, cap, [&] {
    TORCH_CHECK(stepmesh::hooks != nullptr, "the lazy backend is not registered");
    static const auto* ours = torch::lazy::getBackend();
    const auto* next = is_reference != 0 ? torch::lazy::GetTSBackendImpl() : ours;
    torch::lazy::LazyGraphExecutor::Get()->ClearComputationCache();
    torch::lazy::BackendRegistrar registrar(next);
  });
}

// The tensor on a lazy device.
int stepmesh_lazy_to_device(const void* tensor, int64_t ordinal, void** out, char* message,
                            size_t cap) {
  return stepmesh::guarded(message, cap, [&] {
    const c10::Device device(at::kLazy, static_cast<c10::DeviceIndex>(ordinal));
    *out = new at::Tensor(static_cast<const at::Tensor*>(tensor)->to(device));
  });
}

// Ends a step: computes every live tensor of the device; `wait` for it on the host.
int stepmesh_lazy_mark_step(int64_t ordinal, int32_t wait, char* message, size_t cap) {
  return stepmesh::guarded(message, cap, [&] {
    const auto device = stepmesh::lazy_device(ordinal);
    auto* executor = torch::lazy::LazyGraphExecutor::Get();
    try {
      executor->SyncLiveTensorsGraph(&device, {}, wait != 0);
    } catch (...) {
      // The core keeps what went wrong for the next who uses the device; it is told here.
      stepmesh::forget_failure(device);
      throw;
    }
    executor->MarkStep(device);
  });
}

// A counter of the core; 0 if it never counted.
int stepmesh_lazy_counter(const char* name, int64_t* value, char* message, size_t cap) {
  return stepmesh::guarded(message, cap, [&] {
    const auto* counter = torch::lazy::GetCounter(name);
    *value = counter == nullptr ? 0 : counter->Value();
  });
}

// Sets every counter and metric of the core to nothing.
int stepmesh_lazy_reset_metrics(char* message, size_t cap) {
  return stepmesh::guarded(message, cap, [&] {
    torch::lazy::MetricsArena::Get()->ResetCounters();
    torch::lazy::MetricsArena::Get()->ResetMetrics();
  });
}

// The core's report, in a string of its own, given back to `stepmesh_lazy_free_text`.
int stepmesh_lazy_metrics(char** text, char* message, size_t cap) {
  return stepmesh::guarded(message, cap, [&] {
    const auto report = torch::lazy::CreateMetricReport();
    *text = static_cast<char*>(::operator new(report.size() + 1));
    std::memcpy(*text, report.c_str(), report.size() + 1);
  });
}

void stepmesh_lazy_free_text(char* text) { ::operator delete(text); }

}  // extern "C"
