// A device of type `mps` on Linux: hooks, guard, allocator, generator and kernels registered through torch's own registries.
// Device memory is host memory behind addresses that the host cannot read. Kernels are the CPU's. Python says which operators
// have one. With `late`, kernels wait in a queue until somebody synchronises.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/detail/MPSHooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/Resize.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/ops/_efficientzerotensor.h>
#include <ATen/ops/copy.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <sstream>

namespace {

using at::IValue;
using at::Tensor;
using torch::jit::Stack;

const c10::Device MPS(c10::DeviceType::MPS, 0);
const c10::DispatchKeySet KEYS(c10::DispatchKey::MPS);
constexpr uintptr_t FAR = uintptr_t(1) << 47;  // beyond the addresses of a process on x86-64: whoever reads there dies
constexpr double GIB = 1024.0 * 1024.0 * 1024.0;
const size_t RECOMMENDED = size_t(12) << 30;

// --------------------------------------------------------------------------------------------------- the queue of kernels

std::recursive_mutex queue_lock;
std::deque<std::function<void()>> queue;
bool late = false;
std::string pending;  // the first error of a kernel that nobody has waited for

void run_queue() {
  std::lock_guard<std::recursive_mutex> guard(queue_lock);
  c10::InferenceMode inference;  // a call in that mode leaves tensors that nobody may write outside of it
  while (!queue.empty()) {
    auto kernel = std::move(queue.front());
    queue.pop_front();
    try {
      kernel();
    } catch (const c10::Error& e) {
      if (pending.empty()) pending = e.what_without_backtrace();
    }
  }
}
void synchronize() {
  std::lock_guard<std::recursive_mutex> guard(queue_lock);
  run_queue();
  if (pending.empty()) return;
  std::string text;
  text.swap(pending);
  throw c10::AcceleratorError({__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, 0, text);
}
void enqueue(std::function<void()> kernel) {
  std::lock_guard<std::recursive_mutex> guard(queue_lock);
  queue.push_back(std::move(kernel));
}

// ------------------------------------------------------------------------------------------------------------- memory

std::atomic<size_t> allocated{0}, limit{size_t(16) << 30};

struct Block {
  c10::DataPtr host;
  size_t bytes;
};
void release(void* block) {
  allocated -= static_cast<Block*>(block)->bytes;
  delete static_cast<Block*>(block);
}
c10::DataPtr far_pointer(c10::DataPtr host, size_t bytes) {
  auto address = reinterpret_cast<uintptr_t>(host.get());
  allocated += bytes;
  void* far = address ? reinterpret_cast<void*>(address + FAR) : nullptr;
  return {far, new Block{std::move(host), bytes}, &release, MPS};
}
void* near_pointer(const void* far) {
  return far ? reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(far) - FAR) : nullptr;
}
void check_memory(size_t n) {
  if (allocated + n <= limit) return;
  std::ostringstream text;
  text.precision(2);
  text << std::fixed << "MPS backend out of memory (MPS allocated: " << double(allocated) / GIB
       << " GiB, other allocations: 384.00 KiB, max allowed: " << double(limit) / GIB << " GiB). Tried to allocate "
       << double(n) / GIB << " GiB on private pool. Use PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0 to disable upper limit for "
       << "memory allocations (may cause system failure).";
  TORCH_CHECK(false, text.str());
}
struct Memory final : c10::Allocator {
  c10::DataPtr allocate(size_t n) override {
    check_memory(n);
    return far_pointer(c10::GetCPUAllocator()->allocate(n), n);
  }
  void copy_data(void* to, const void* from, size_t n) const override {
    run_queue();
    std::memcpy(near_pointer(to), near_pointer(from), n);
  }
};
Memory memory;
REGISTER_ALLOCATOR(c10::DeviceType::MPS, &memory)

c10::DataPtr keeping(void* address, const c10::Storage& owner) {
  return {address, new c10::Storage(owner), [](void* s) { delete static_cast<c10::Storage*>(s); }, c10::Device(c10::kCPU)};
}
c10::Storage near_storage(const c10::Storage& s) {
  c10::DataPtr p = keeping(near_pointer(s.data()), s);
  return {c10::Storage::use_byte_size_t(), s.nbytes(), std::move(p), c10::GetCPUAllocator(), true};
}
c10::Storage far_storage(const c10::Storage& s) {
  check_memory(s.nbytes());
  c10::DataPtr p = far_pointer(keeping(s.mutable_data(), s), s.nbytes());
  return {c10::Storage::use_byte_size_t(), s.nbytes(), std::move(p), &memory, true};
}
void copy_bits(const Tensor& from, const Tensor& to) {
  to._set_conj(from.is_conj());
  to._set_neg(from.is_neg());
  if (from.unsafeGetTensorImpl()->is_wrapped_number()) to.unsafeGetTensorImpl()->set_wrapped_number(true);
}
Tensor over(const Tensor& t, c10::Storage storage, c10::DispatchKeySet keys) {
  Tensor r = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), keys, t.dtype());
  r.unsafeGetTensorImpl()->set_sizes_and_strides(t.sizes(), t.strides(), t.storage_offset());
  copy_bits(t, r);
  return r;
}
void check_dtype(c10::ScalarType dtype) {
  TORCH_CHECK_TYPE(dtype != c10::kDouble, "Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't support ",
                   "float64. Please use float32 instead.");
  bool refused = dtype == c10::kComplexDouble || c10::isFloat8Type(dtype);
  TORCH_CHECK_TYPE(!refused, "Trying to convert ", dtype, " to the MPS backend but it does not have support for that dtype.");
}
void check_strided(c10::Layout layout) {
  TORCH_CHECK_NOT_IMPLEMENTED(layout == c10::kStrided, "only strided tensors are supported on MPS");
}

// ---------------------------------------------------------------------------------------------------- random numbers

struct Generator final : c10::GeneratorImpl {
  explicit Generator(uint64_t seed = c10::default_rng_seed_val) : GeneratorImpl(MPS, KEYS), seed_(seed) {}
  void set_current_seed(uint64_t seed) override { seed_ = seed, drawn_ = 0; }
  void set_offset(uint64_t n) override { drawn_ = n; }
  uint64_t get_offset() const override { return drawn_; }
  uint64_t current_seed() const override { return seed_; }
  uint64_t seed() override {
    set_current_seed(c10::detail::getNonDeterministicRandom());
    return seed_;
  }
  void set_state(const c10::TensorImpl& s) override {
    at::detail::check_rng_state(s);
    TORCH_CHECK(s.numel() == 36, "RNG state is wrong size");
    auto* p = static_cast<const char*>(s.data());
    std::memcpy(&drawn_, p + 4, 8), std::memcpy(&seed_, p + 28, 8);
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    Tensor s = Tensor(at::detail::empty_cpu({36}, c10::kByte));
    auto* p = static_cast<char*>(s.data_ptr());
    std::memset(p, 0, 36), std::memcpy(p + 4, &drawn_, 8), std::memcpy(p + 28, &seed_, 8);
    return s.getIntrusivePtr();
  }
  uint64_t next() {  // the seed of one kernel's numbers (splitmix64)
    uint64_t z = seed_ + 0x9E3779B97F4A7C15ull * ++drawn_;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull, z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
  }
  Generator* clone_impl() const override {
    auto* c = new Generator(seed_);
    c->drawn_ = drawn_;
    return c;
  }
  uint64_t seed_, drawn_ = 0;
};
const at::Generator& default_generator() {
  static auto g = at::make_generator<Generator>(c10::detail::getNonDeterministicRandom());
  return g;
}
uint64_t next_seed(const at::Generator& g) { return static_cast<Generator*>(g.unsafeGetGeneratorImpl())->next(); }

// The CPU's own generator for kernels that take none as an argument.
struct Reseeded {
  explicit Reseeded(std::optional<uint64_t> seed) {
    if (!seed) return;
    before = at::detail::getDefaultCPUGenerator().clone();
    auto cpu = at::detail::getDefaultCPUGenerator();
    cpu.set_current_seed(*seed);
  }
  ~Reseeded() {
    if (!before.defined()) return;
    auto cpu = at::detail::getDefaultCPUGenerator();
    cpu.set_state(before.get_state());
  }
  at::Generator before;
};

// ---------------------------------------------------------------------------------------------- hooks and device guard

using Clock = std::chrono::steady_clock;
std::map<uint32_t, Clock::time_point> events;
uint32_t last_event = 0;

struct Hooks : at::MPSHooksInterface {
  void init() const override {}
  bool hasMPS() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool isOnMacOSorNewer(unsigned major, unsigned) const override { return major <= 15; }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override { return default_generator(); }
  at::Generator getNewGenerator(c10::DeviceIndex) const override { return at::make_generator<Generator>(); }
  c10::Allocator* getMPSDeviceAllocator() const override { return &memory; }
  void deviceSynchronize() const override { synchronize(); }
  void commitStream() const override {}
  void emptyCache() const override {}
  size_t getCurrentAllocatedMemory() const override { return allocated; }
  size_t getDriverAllocatedMemory() const override { return allocated + (size_t(4) << 20); }
  size_t getRecommendedMaxMemory() const override { return RECOMMENDED; }
  size_t getMaxBufferLength() const override { return size_t(9) << 30; }
  void setMemoryFraction(double r) const override { limit = r == 0 ? size_t(1) << 60 : size_t(r * double(RECOMMENDED)); }
  uint32_t acquireEvent(bool) const override { return events[++last_event], last_event; }
  void releaseEvent(uint32_t e) const override { events.erase(e); }
  void recordEvent(uint32_t e) const override { events[e] = Clock::now(); }
  void waitForEvent(uint32_t) const override {}
  void synchronizeEvent(uint32_t) const override { synchronize(); }
  bool queryEvent(uint32_t) const override { return queue.empty(); }
  double elapsedTimeOfEvents(uint32_t a, uint32_t b) const override {
    return std::chrono::duration<double, std::milli>(events[b] - events[a]).count();
  }
  c10::Device getDeviceFromPtr(void*) const override { return MPS; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  void setCurrentDevice(c10::DeviceIndex) const override {}
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex) const override { return 0; }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex) const override { return 0; }
};

struct Guard final : c10::impl::DeviceGuardImplInterface {
  static constexpr c10::DeviceType static_type = c10::DeviceType::MPS;
  Guard() = default;
  explicit Guard(c10::DeviceType) {}
  c10::DeviceType type() const override { return static_type; }
  c10::Device exchangeDevice(c10::Device) const override { return MPS; }
  c10::Device getDevice() const override { return MPS; }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::Stream getStream(c10::Device) const override { return c10::Stream(c10::Stream::DEFAULT, MPS); }
  c10::Stream exchangeStream(c10::Stream) const override { return c10::Stream(c10::Stream::DEFAULT, MPS); }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  void record(void**, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag) const override {}
  bool queryEvent(void*) const override { return queue.empty(); }
  void synchronizeDevice(const c10::DeviceIndex) const override { synchronize(); }
  void synchronizeStream(const c10::Stream&) const override { synchronize(); }
};
C10_REGISTER_GUARD_IMPL(MPS, Guard)

// ------------------------------------------------------------------------ one call: the CPU's tensors over the same memory

IValue map_tensors(const IValue& v, const std::function<Tensor(const Tensor&)>& f) {
  if (v.isTensor()) return f(v.toTensor());
  if (v.isTensorList()) {
    c10::List<Tensor> r;
    for (const Tensor& t : v.toTensorVector()) r.push_back(f(t));
    return r;
  }
  if (v.isOptionalTensorList()) {
    c10::List<std::optional<Tensor>> r;
    for (const std::optional<Tensor>& t : v.toOptionalTensorVector()) r.push_back(t ? std::optional<Tensor>(f(*t)) : t);
    return r;
  }
  return v;
}

struct Pair {
  Tensor far, near;
};
struct Call {
  std::vector<Pair> tensors;
  std::vector<std::pair<c10::Storage, c10::Storage>> storages;  // far, near

  Tensor near(const Tensor& t) {
    if (!t.defined() || !t.is_mps()) return t;
    check_strided(t.layout());
    for (auto& p : tensors)
      if (p.far.is_same(t)) return p.near;
    if (t._is_zerotensor()) {
      tensors.push_back({t, at::_efficientzerotensor(t.sizes(), t.options().device(c10::kCPU))});
      return tensors.back().near;
    }
    const c10::Storage& s = t.storage();
    size_t i = 0;
    while (i < storages.size() && storages[i].first.unsafeGetStorageImpl() != s.unsafeGetStorageImpl()) i++;
    if (i == storages.size()) storages.emplace_back(s, near_storage(s));
    tensors.push_back({t, over(t, storages[i].second, c10::DispatchKeySet(c10::DispatchKey::CPU))});
    return tensors.back().near;
  }
  Tensor far(const Tensor& t) {
    if (!t.defined() || t.is_mps()) return t;
    for (auto& p : tensors)
      if (p.near.is_same(t)) return p.far;
    check_dtype(t.scalar_type());
    check_strided(t.layout());
    if (t._is_zerotensor()) return at::_efficientzerotensor(t.sizes(), t.options().device(MPS));
    const c10::Storage& s = t.storage();
    size_t i = 0;
    while (i < storages.size() && storages[i].second.unsafeGetStorageImpl() != s.unsafeGetStorageImpl()) i++;
    if (i == storages.size()) storages.emplace_back(far_storage(s), s);
    return over(t, storages[i].first, KEYS);
  }
  IValue near(const IValue& v) {
    if (v.isDevice()) return c10::Device(c10::kCPU);
    return map_tensors(v, [this](const Tensor& t) { return near(t); });
  }
  IValue far(const IValue& v) {
    return map_tensors(v, [this](const Tensor& t) { return far(t); });
  }
  void settle() {  // a kernel may have resized a destination, or given it another memory
    for (auto& p : tensors) {
      if (p.far._is_zerotensor()) continue;
      auto *f = p.far.unsafeGetTensorImpl(), *n = p.near.unsafeGetTensorImpl();
      const c10::Storage& s = n->storage();
      if (s.data() != near_pointer(p.far.storage().data()) || s.nbytes() != p.far.storage().nbytes()) {
        c10::Storage moved = far_storage(s);
        auto* old = p.far.storage().unsafeGetStorageImpl();
        size_t bytes = moved.nbytes();
        old->set_data_ptr_noswap(std::move(moved.unsafeGetStorageImpl()->_mutable_data_ptr_no_checks()));
        old->set_nbytes(bytes);
      }
      if (f->sizes() != n->sizes() || f->strides() != n->strides() || f->storage_offset() != n->storage_offset())
        f->set_sizes_and_strides(n->sizes(), n->strides(), n->storage_offset());
      if (p.far.is_conj() != p.near.is_conj()) p.far._set_conj(p.near.is_conj());
    }
  }
};

// ------------------------------------------------------------------------------------------------ kernels that run late

// What a call gives without numbers: its arguments and results on the device `meta`.
struct Outline {
  std::vector<Pair> tensors;  // near, meta

  Tensor meta(const Tensor& t) {
    if (!t.defined() || t.unsafeGetTensorImpl()->is_wrapped_number()) return t;  // the meta kernels in Python want numbers as such
    for (auto& p : tensors)
      if (p.far.is_same(t)) return p.near;
    Tensor m = at::empty_strided(t.sizes(), t.strides(), t.options().device(c10::kMeta));
    copy_bits(t, m);
    tensors.push_back({t, m});
    return m;
  }
  const Tensor* argument(const Tensor& result) const {
    for (auto& p : tensors)
      if (p.near.is_same(result)) return &p.far;
    return nullptr;
  }
  bool is_fresh(const Tensor& result) const {
    for (auto& p : tensors)
      if (p.near.is_alias_of(result)) return false;
    return result.device().is_meta() && result.layout() == c10::kStrided;
  }
  bool kept_shapes() const {
    for (auto& p : tensors)
      if (p.far.sizes() != p.near.sizes() || p.far.strides() != p.near.strides()) return false;
    return true;
  }
};
Tensor fresh_like(const Tensor& t) {
  return at::detail::empty_strided_generic(t.sizes(), t.strides(), &memory, KEYS, t.scalar_type());
}
// Puts a call into the queue, and its results, still without numbers, onto the stack. False where only the call itself can say
// what its results look like. stack: the arguments on the CPU.
bool postpone(const c10::OperatorHandle& op, Stack* stack, Call& call, std::optional<uint64_t> seed) {
  const auto& schema = op.schema();
  const size_t count = schema.arguments().size(), first = stack->size() - count;
  for (const auto& r : schema.returns())
    if (!r.type()->isSubtypeOf(*c10::TensorType::get()) && !r.type()->isSubtypeOf(*c10::ListType::ofTensors())) return false;
  if (!op.hasComputedKernelForDispatchKey(c10::DispatchKey::Meta)) return false;
  if (schema.name().find("batch_norm") != std::string::npos) return false;  // its meta kernels give other shapes
  Outline outline;
  Stack outlined, arguments(stack->begin() + first, stack->end());
  for (const IValue& v : arguments) {
    if (v.isGenerator()) outlined.push_back(IValue());
    else if (v.isDevice()) outlined.push_back(c10::Device(c10::kMeta));
    else outlined.push_back(map_tensors(v, [&](const Tensor& t) { return outline.meta(t); }));
  }
  try {
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::Meta), &outlined);
  } catch (const std::exception&) {
    return false;  // the kernel itself says what is wrong, or gives a shape that depends on numbers
  }
  if (!outline.kept_shapes()) return false;
  bool known = true;
  for (const IValue& v : outlined)
    map_tensors(v, [&](const Tensor& t) {
      known = known && (!t.defined() || outline.argument(t) || outline.is_fresh(t));
      return t;
    });
  if (!known) return false;
  std::vector<Tensor> destinations;  // on the CPU, one for each tensor of the results; undefined where it is an argument
  stack->resize(first);
  for (const IValue& v : outlined)
    stack->push_back(map_tensors(v, [&](const Tensor& t) -> Tensor {
      const Tensor* own = t.defined() ? outline.argument(t) : nullptr;
      Tensor far = !t.defined() ? t : own ? call.far(*own) : fresh_like(t);
      destinations.push_back(t.defined() && !own ? call.near(far) : Tensor());
      return far;
    }));
  enqueue([op, arguments, destinations, seed, call]() mutable {
    at::AutoDispatchBelowADInplaceOrView below;
    Reseeded reseeded(seed);
    Stack s = std::move(arguments);
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &s);
    size_t i = 0;
    for (const IValue& v : s)
      map_tensors(v, [&](const Tensor& t) {
        const Tensor& to = destinations.at(i++);
        if (to.defined()) {
          TORCH_CHECK(to.sizes() == t.sizes(), "stand-in: ", op.schema().name(), " gives another shape on meta");
          to.copy_(t);
        }
        return t;
      });
  });
  return true;
}

// -------------------------------------------------------------------------------------------- kernels for whole operators

bool strays(const Tensor& t) { return t.defined() && t.is_cpu() && t.dim() > 0; }
void check_one_device(const c10::OperatorHandle& op, const IValue& v) {
  bool off = v.isTensor() && strays(v.toTensor());
  if (v.isTensorList())
    for (const Tensor& t : v.toTensorVector()) off |= strays(t);
  TORCH_CHECK(!off, "Expected all tensors to be on the same device, but found at least two devices, mps:0 and cpu! (in ",
              op.schema().name(), ")");
}
bool is_generator(const c10::Argument& a) {
  const auto& type = *a.type();
  return type.kind() == c10::TypeKind::OptionalType &&
         type.castRaw<c10::OptionalType>()->getElementType()->kind() == c10::TypeKind::GeneratorType;
}
std::set<std::string> mixing;  // operators that take tensors of the CPU beside their own

void on_cpu_kernel(const c10::OperatorHandle& op, Stack* stack) {
  at::AutoDispatchBelowADInplaceOrView below;
  const auto& schema = op.schema();
  const size_t count = schema.arguments().size(), first = stack->size() - count;
  const bool mixes = mixing.count(schema.name()) > 0;
  bool draws = false;
  Call call;
  for (size_t i = 0; i < count; i++) {
    IValue& v = (*stack)[first + i];
    if (!mixes) check_one_device(op, v);
    if (is_generator(schema.arguments()[i]) || v.isGenerator()) {
      at::Generator g = v.isNone() ? default_generator() : v.toGenerator();
      TORCH_CHECK(g.device().is_mps(), "Expected a 'mps' device type for generator but found '", g.device().type(), "'");
      v = at::detail::createCPUGenerator(next_seed(g));
      draws = true;
    } else {
      v = call.near(v);
    }
  }
  std::optional<uint64_t> seed;
  if (!draws && op.hasTag(at::Tag::nondeterministic_seeded)) seed = next_seed(default_generator());
  if (late) {
    if (postpone(op, stack, call, seed)) return;
    synchronize();
  }
  Reseeded reseeded(seed);
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  call.settle();
  for (size_t i = stack->size() - schema.returns().size(); i < stack->size(); i++) (*stack)[i] = call.far((*stack)[i]);
}
void on_metadata(const c10::OperatorHandle& op, Stack* stack) {  // shape, strides and offset: the CPU's, on these tensors
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
}
void fall_back(const c10::OperatorHandle& op, Stack* stack) {
  TORCH_WARN_ONCE("The operator '", op.schema().operator_name(), "' is not currently supported on the MPS backend and will ",
                  "fall back to run on the CPU. This may have performance implications.");
  at::native::cpu_fallback(op, stack);
}
std::string commit;
void refuse(const c10::OperatorHandle& op, Stack*) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, "The operator '", op.schema().operator_name(), "' is not currently implemented for the MPS device. If you want ",
      "this op to be considered for addition please comment on https://github.com/pytorch/pytorch/issues/141287 and mention ",
      "use-case, that resulted in missing op as well as commit hash ", commit, ". As a temporary fix, you can set the ",
      "environment variable `PYTORCH_ENABLE_MPS_FALLBACK=1` to use the CPU as a fallback for this op. WARNING: this will be ",
      "slower than running natively on MPS.");
}

// ----------------------------------------------------------------------------------------- allocation, copies and storages

using Dtype = std::optional<c10::ScalarType>;
using Layout = std::optional<c10::Layout>;
using Where = std::optional<c10::Device>;
void check(at::IntArrayRef size, c10::ScalarType dtype, Layout layout) {
  check_strided(c10::layout_or_default(layout));
  TORCH_CHECK(size.size() <= 16, "MPS supports tensors with dimensions <= 16, but got ", size.size(), ".");
  check_dtype(dtype);
}
Tensor filled(Tensor t) {
  const auto& c = at::globalContext();
  if (c.deterministicAlgorithms() && c.deterministicFillUninitializedMemory()) at::native::fill_empty_deterministic_(t);
  return t;
}
Tensor empty(at::IntArrayRef size, Dtype dtype, Layout layout, Where, std::optional<bool>,
             std::optional<c10::MemoryFormat> format) {
  check(size, c10::dtype_or_default(dtype), layout);
  return filled(Tensor(at::detail::empty_generic(size, &memory, KEYS, c10::dtype_or_default(dtype), format)));
}
Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride, Dtype dtype, Layout layout, Where, std::optional<bool>) {
  check(size, c10::dtype_or_default(dtype), layout);
  return filled(Tensor(at::detail::empty_strided_generic(size, stride, &memory, KEYS, c10::dtype_or_default(dtype))));
}
Tensor zero_tensor(at::IntArrayRef size, Dtype dtype, Layout, Where, std::optional<bool>) {
  static at::native::ZeroTensorAllocator nothing(MPS);
  auto keys = KEYS | c10::DispatchKeySet(c10::DispatchKey::ZeroTensor);
  return Tensor(at::detail::empty_generic(size, &nothing, keys, c10::dtype_or_default(dtype), {}));
}
Tensor& copy_(Tensor& to, const Tensor& from, bool non_blocking) {
  if (to.is_mps()) check_dtype(to.scalar_type());
  at::AutoDispatchBelowADInplaceOrView below;
  Call call;
  Tensor t = call.near(to), f = call.near(from);
  bool waits = (from.is_cpu() || to.is_cpu()) && !non_blocking;
  if (late && !waits) {
    enqueue([t, f, call]() mutable { t.copy_(f); });
    return to;
  }
  if (waits) synchronize();
  t.copy_(f);
  return to;
}
Tensor copy_from(const Tensor& from, const Tensor& to, bool non_blocking) {
  Tensor t = to;
  copy_(t, from, non_blocking);
  return to;
}
Tensor copy_from_and_resize(const Tensor& from, const Tensor& to) {
  if (!to.sizes().equals(from.sizes())) {  // not by `resize_`: where that falls back as well, it would come here again
    run_queue();
    Call call;
    call.near(to).resize_(from.sizes());
    call.settle();
  }
  return copy_from(from, to, false);
}
Tensor& set_to_nothing(Tensor& self) {
  c10::Storage nothing(c10::Storage::use_byte_size_t(), 0, &memory, true);
  return self.set_(std::move(nothing), 0, {0}, {});
}

// -------------------------------------------------------------------------------------------------------- for Python

Tensor host(const Tensor& t) {
  run_queue();
  Call call;
  return call.near(t);
}
Tensor device(const Tensor& t) {
  Call call;
  return call.far(t);
}
std::vector<std::unique_ptr<torch::Library>> kept;
torch::Library& library(const char* ns) {
  kept.push_back(std::make_unique<torch::Library>(torch::Library::IMPL, ns, c10::DispatchKey::MPS, __FILE__, __LINE__));
  return *kept.back();
}
using Names = std::vector<std::string>;
void install(Names kernels, Names views, Names mixes, Names falling, bool falls_back, std::string hash) {
  commit = std::move(hash);
  for (auto& n : mixes) mixing.insert("aten::" + n);
  auto& all = library("_");
  if (falls_back) all.fallback(torch::CppFunction::makeFromBoxedFunction<&fall_back>());
  else all.fallback(torch::CppFunction::makeFromBoxedFunction<&refuse>());
  auto& aten = library("aten");
  for (auto& n : kernels) aten.impl(n.c_str(), torch::CppFunction::makeFromBoxedFunction<&on_cpu_kernel>());
  for (auto& n : views) aten.impl(n.c_str(), torch::CppFunction::makeFromBoxedFunction<&on_metadata>());
  for (auto& n : falling) aten.impl(n.c_str(), torch::CppFunction::makeFromBoxedFunction<&fall_back>());
  aten.impl("empty.memory_format", TORCH_FN(empty));
  aten.impl("empty_strided", TORCH_FN(empty_strided));
  aten.impl("_efficientzerotensor", TORCH_FN(zero_tensor));
  aten.impl("copy_", TORCH_FN(copy_));
  aten.impl("_copy_from", TORCH_FN(copy_from));
  aten.impl("_copy_from_and_resize", TORCH_FN(copy_from_and_resize));
  aten.impl("set_", TORCH_FN(set_to_nothing));
}

}  // namespace

namespace at {
C10_REGISTER_TYPED_CLASS(MPSHooksRegistry, "MPSHooks", Hooks)
}

TORCH_LIBRARY(standin, m) {
  m.def("host(Tensor t) -> Tensor", &host);      // the same memory as a tensor of the CPU
  m.def("device(Tensor t) -> Tensor", &device);  // the other way round
  m.def("fail(str text) -> ()", [](std::string text) { pending = std::move(text); });
  m.def("run_late(bool on) -> ()", [](bool on) { run_queue(), late = on; });
  m.def("install(str[] kernels, str[] views, str[] mixes, str[] falling, bool falls_back, str hash) -> ()", &install);
}
