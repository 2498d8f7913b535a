//! From traced tensors to a launched graph: which tensors, which graph, compiled or found, launched.

use std::fs::OpenOptions;
use std::io::Write;
use std::panic::Location;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use stepmesh_core::Buffer;

use super::device::lock;
use super::explain::nearest;
use super::{DeviceContext, Options, PendingStep, Recompilation};
use crate::cache::Lru;
use crate::ir::{Canonical, EmissionMap, NodePtr, canonical, ir_text, post_order};
use crate::metrics::{Counter, Metric};
use crate::tensor::TensorInner;
use crate::{BackendDataPtr, ComputationPtr, DeviceDataInfo, Error, LazyTensor, Shape};

/// What only one thread at a time uses: whoever launches.
#[derive(Debug)]
pub(crate) struct SyncState {
    pub(super) cache: Lru<Canonical, Compiled>,
    compiles: u64,
}

/// A compiled graph.
#[derive(Clone, Debug)]
pub(crate) struct Compiled {
    name: Arc<str>,
    computation: ComputationPtr,
}

/// A tensor that is to be computed.
struct Target {
    tensor: Arc<TensorInner>,
    root: NodePtr,
    /// Where its value goes; new memory if not said.
    place: Option<BackendDataPtr>,
}

/// The nodes of a graph.
struct Traced {
    order: Vec<NodePtr>,
    emission: EmissionMap,
    roots: Vec<NodePtr>,
}

impl SyncState {
    pub(super) fn new(options: &Options) -> Self {
        Self {
            cache: Lru::new(options.cache_entries_max, options.cache_len_bytes_max),
            compiles: 0,
        }
    }
}

impl DeviceContext {
    /// Ends a step.
    pub(crate) fn mark_step(self: &Arc<Self>) -> Result<PendingStep, Error> {
        let results = self.sync_live(true);
        self.metrics().count(Counter::MarkStep);
        self.steps.fetch_add(1, Ordering::Relaxed);
        results.map(PendingStep::new)
    }

    /// Launches all that is traced and alive.
    pub(crate) fn sync_live(
        self: &Arc<Self>,
        in_mark_step: bool,
    ) -> Result<Option<BackendDataPtr>, Error> {
        let mut state = self.wait_for_turn();
        let mut is_complete = true;
        let mut targets = Vec::new();
        for tensor in self.live.all() {
            let Some(root) = tensor.traced() else {
                continue;
            };
            let handle = LazyTensor::of(tensor);
            if self.backend().should_sync_tensor(&handle) {
                targets.push(Target {
                    tensor: handle.into_inner(),
                    root,
                    place: None,
                });
            } else {
                is_complete = false;
            }
        }
        let results = self.launch(&mut state, targets, in_mark_step, is_complete)?;
        Ok(results.into_iter().next())
    }

    /// Launches what some tensors need.
    pub(crate) fn sync_tensors(self: &Arc<Self>, tensors: &[&LazyTensor]) -> Result<(), Error> {
        let mut state = self.wait_for_turn();
        let targets = tensors.iter().filter_map(|tensor| {
            let tensor = Arc::clone(tensor.inner());
            let root = tensor.traced()?;
            let place = None;
            Some(Target {
                tensor,
                root,
                place,
            })
        });
        let targets = targets.collect();
        self.launch(&mut state, targets, false, false).map(drop)
    }

    /// Launches what some tensors need, with their values in given memory.
    #[track_caller]
    pub(crate) fn sync_into(
        self: &Arc<Self>,
        targets: &[(&LazyTensor, &Arc<Buffer>, u64)],
    ) -> Result<(), Error> {
        let backend = self.stepmesh("sync_into")?;
        let mut state = self.wait_for_turn();
        let mut traced = Vec::with_capacity(targets.len());
        for (tensor, buffer, offset) in targets {
            let place =
                backend.create_placeholder_in(buffer, *offset, tensor.ty(), &self.device())?;
            let root = tensor.node(Location::caller())?;
            let tensor = Arc::clone(tensor.inner());
            if let Some(data) = root.device_data() {
                // There is nothing to compute.
                backend.copy_into(data, &place)?;
                tensor.computed(&root, &place);
                continue;
            }
            traced.push(Target {
                tensor,
                root,
                place: Some(place),
            });
        }
        self.launch(&mut state, traced, false, false).map(drop)
    }

    /// The data of nodes, launched if need be.
    pub(crate) fn data_of_nodes(&self, nodes: &[NodePtr]) -> Result<Vec<BackendDataPtr>, Error> {
        let started = Instant::now();
        let mut state = self.wait_for_turn();
        let roots: Vec<NodePtr> = nodes
            .iter()
            .filter(|node| node.device_data().is_none())
            .cloned()
            .collect();
        let mut computed = Vec::new();
        if !roots.is_empty() {
            let places = roots.iter().map(|root| self.placeholder(root)).collect();
            let traced = Traced::new(roots);
            let compiled = self.find_or_compile(&mut state, &traced, None)?;
            computed = self.execute(&compiled, &traced.arguments(), places, &[])?;
        }
        drop(state);
        self.metrics()
            .sample_time(Metric::IrValueTensorToDataHandle, started);
        let mut computed = computed.into_iter();
        let data = |node: &NodePtr| match node.device_data() {
            Some(data) => Ok(Arc::clone(data)),
            None => computed
                .next()
                .ok_or_else(|| Error::NoValue { ty: node.ty() }),
        };
        nodes.iter().map(data).collect()
    }

    fn wait_for_turn(&self) -> std::sync::MutexGuard<'_, SyncState> {
        let started = Instant::now();
        let state = self.lock_sync();
        self.metrics().sample_time(Metric::DeviceLockWait, started);
        state
    }

    fn placeholder(&self, root: &NodePtr) -> BackendDataPtr {
        self.metrics().count(Counter::CreateDataHandles);
        let shape = Shape::new(root.ty());
        self.backend()
            .create_data_placeholder(&self.device(), &shape)
    }

    /// Launches a graph. Afterwards the tensors hold data, which may still be on its way; if the
    /// graph cannot be compiled they stay as they are, so that the program can go on.
    fn launch(
        &self,
        state: &mut SyncState,
        targets: Vec<Target>,
        in_mark_step: bool,
        may_donate: bool,
    ) -> Result<Vec<BackendDataPtr>, Error> {
        if targets.is_empty() {
            return Ok(Vec::new());
        }
        let traced = Traced::new(targets.iter().map(|target| target.root.clone()).collect());
        self.metrics()
            .sample_count(Metric::TensorsGraphSize, traced.order.len());
        let found = self.find(state, &traced);
        // What the tensors are now decides what may be donated, so they become data first; when the
        // graph is not compiled yet, only after it was.
        let key = match found {
            Ok(compiled) => return self.launch_found(&compiled, targets, &traced, may_donate),
            Err(key) => key,
        };
        let donations = if may_donate && self.options().donate {
            traced.donations(&targets)
        } else {
            Vec::new()
        };
        let compiled = self.compile(state, &traced, key, &donations, in_mark_step)?;
        self.launch_found(&compiled, targets, &traced, may_donate)
    }

    fn launch_found(
        &self,
        compiled: &Compiled,
        targets: Vec<Target>,
        traced: &Traced,
        may_donate: bool,
    ) -> Result<Vec<BackendDataPtr>, Error> {
        self.metrics()
            .count_many(Counter::SyncedTensorsWithIR, targets.len() as u64);
        let mut places = Vec::with_capacity(targets.len());
        let mut roots_left = Vec::with_capacity(targets.len());
        for target in targets {
            let place = match target.place {
                Some(place) => place,
                None => self.placeholder(&target.root),
            };
            place.set_info(DeviceDataInfo {
                tensor_id: target.tensor.id(),
                read_only: false,
            });
            target.tensor.computed(&target.root, &place);
            roots_left.push(target.root);
            places.push(place);
        }
        drop(roots_left);
        let aliases = compiled.computation.aliases();
        let donations = if may_donate && self.options().donate && !aliases.is_empty() {
            traced.donated(aliases)
        } else {
            Vec::new()
        };
        self.execute(compiled, &traced.arguments(), places, &donations)
    }

    fn execute(
        &self,
        compiled: &Compiled,
        arguments: &[BackendDataPtr],
        places: Vec<BackendDataPtr>,
        donations: &[(usize, usize)],
    ) -> Result<Vec<BackendDataPtr>, Error> {
        let started = Instant::now();
        self.backend().execute_computation_into(
            &compiled.computation,
            arguments,
            &places,
            donations,
            &self.device(),
        )?;
        self.metrics().sample_time(Metric::ExecuteTime, started);
        self.metrics()
            .count_many(Counter::InputOutputAliasCount, donations.len() as u64);
        Ok(places)
    }

    fn find_or_compile(
        &self,
        state: &mut SyncState,
        traced: &Traced,
        donations: Option<&[(usize, usize)]>,
    ) -> Result<Compiled, Error> {
        match self.find(state, traced) {
            Ok(compiled) => Ok(compiled),
            Err(key) => self.compile(state, traced, key, donations.unwrap_or_default(), false),
        }
    }

    /// The compiled graph, or the key to keep it by. Results that go to given memory are the same
    /// graph as those that do not.
    fn find(&self, state: &mut SyncState, traced: &Traced) -> Result<Compiled, Canonical> {
        let key = canonical(&traced.order, &traced.emission, &traced.roots);
        match state.cache.get(&key) {
            Some(compiled) => {
                self.metrics().count(Counter::CachedCompile);
                Ok(compiled.clone())
            }
            None => Err(key),
        }
    }

    fn compile(
        &self,
        state: &mut SyncState,
        traced: &Traced,
        key: Canonical,
        donations: &[(usize, usize)],
        in_mark_step: bool,
    ) -> Result<Compiled, Error> {
        let started = Instant::now();
        let name: Arc<str> = format!("lazy_{}", state.compiles + 1).into();
        let mut lowering = self.backend().create_lowering_context_with_post_order(
            &name,
            &self.device(),
            traced.order.clone(),
            traced.emission.clone(),
        )?;
        for root in &traced.roots {
            lowering.add_result(root)?;
        }
        for (parameter, result) in donations {
            lowering.set_up_alias(*result, *parameter)?;
        }
        lowering.set_in_mark_step(in_mark_step);
        let computation = lowering.build()?;
        self.explain(state, &name, &computation)?;
        self.save(&name, traced);
        let compiled = self.backend().compile(vec![computation])?;
        let Some(computation) = compiled.into_iter().next() else {
            return Err(Error::lowering("compiling a graph", "nothing came of it"));
        };
        state.compiles += 1;
        self.metrics().count(Counter::UncachedCompile);
        self.metrics().count(Counter::CreateCompileHandles);
        self.metrics().sample_time(Metric::CompileTime, started);
        let len_bytes = key.len_bytes() + computation.len_bytes();
        let compiled = Compiled { name, computation };
        let gone = state.cache.insert(key, compiled.clone(), len_bytes);
        self.metrics()
            .count_many(Counter::DestroyCompileHandles, gone as u64);
        Ok(compiled)
    }

    /// Says why a graph is to be compiled, and whether it may.
    fn explain(
        &self,
        state: &SyncState,
        name: &Arc<str>,
        computation: &ComputationPtr,
    ) -> Result<(), Error> {
        let cached = state.cache.values();
        let cached = cached.map(|other| (other.computation.graph(), Arc::clone(&other.name)));
        let nearest = nearest(computation.graph(), cached);
        let explanation = nearest.as_ref().map_or_else(
            || "no graph is cached".to_owned(),
            |(nearest, difference)| format!("nearest is {nearest}: {difference}"),
        );
        let (compiles, step) = (state.compiles + 1, self.steps());
        let options = self.options();
        let is_late = options
            .no_recompile_after
            .is_some_and(|steps| step >= steps);
        let limit = match options.max_compiles {
            _ if is_late => Some(0),
            Some(limit) if compiles > limit => Some(limit),
            _ => None,
        };
        if let Some((nearest, difference)) = nearest {
            tracing::debug!(graph = %name, step, %nearest, %difference, "recompilation");
            let mut kept = lock(&self.recompilations);
            if kept.len() >= options.recompilations_max.max(1) {
                kept.remove(0);
            }
            kept.push(Recompilation {
                graph: Arc::clone(name),
                step,
                nearest,
                difference,
            });
        }
        match limit {
            Some(limit) => Err(Error::TooManyCompiles {
                graph: Arc::clone(name),
                compiles,
                limit,
                explanation,
            }),
            None => Ok(()),
        }
    }

    fn save(&self, name: &str, traced: &Traced) {
        let Some(path) = &self.options().save_graphs_to else {
            return;
        };
        let text = format!("[{name}]\n{}\n", ir_text(&traced.roots));
        let file = OpenOptions::new().append(true).create(true).open(path);
        let saved = file.and_then(|mut file| file.write_all(text.as_bytes()));
        if let Err(error) = saved {
            tracing::warn!(path = %path.display(), %error, "cannot save a graph");
        }
    }
}

impl Traced {
    fn new(roots: Vec<NodePtr>) -> Self {
        let mut emission = EmissionMap::default();
        let order = post_order(&roots, &mut emission);
        Self {
            order,
            emission,
            roots,
        }
    }

    fn arguments(&self) -> Vec<BackendDataPtr> {
        let leaves = self.order.iter().filter_map(|node| node.device_data());
        leaves.cloned().collect()
    }

    /// For each node, how many of its handles are this graph's own.
    fn own_handles(&self) -> Vec<usize> {
        // One is in the order.
        let mut counts = vec![1; self.order.len()];
        let operands = self.order.iter().flat_map(|node| node.operands());
        for node in operands.chain(&self.roots) {
            if let Some(place) = self.emission.place(node) {
                counts[place as usize] += 1;
            }
        }
        counts
    }

    /// Which parameters will be nobody's once the graph is launched, by number; `others` says how
    /// many handles of a node are still to go. If anybody else holds an operation, none: it could be
    /// computed again from the parameters.
    fn free_parameters(&self, others: &dyn Fn(&NodePtr) -> usize) -> Vec<bool> {
        let own = self.own_handles();
        let is_own = |(node, own): (&NodePtr, usize)| Arc::strong_count(node) <= own + others(node);
        let mut pairs = self.order.iter().zip(own.iter().copied());
        let operations_are_own =
            pairs.all(|(node, own)| node.op().is_none() || is_own((node, own)));
        self.order
            .iter()
            .zip(own)
            .filter_map(|(node, own)| Some((node, own, node.device_data()?)))
            .map(|(node, own, data)| {
                operations_are_own
                    && is_own((node, own))
                    && Arc::strong_count(data) == 1
                    && data.is_donatable()
            })
            .collect()
    }

    /// Which parameters may go to which results: the first that fits, for each.
    fn donations(&self, targets: &[Target]) -> Vec<(usize, usize)> {
        // The tensors' states hold a handle of each root, and so do the targets.
        let others = |node: &NodePtr| {
            let is_root = |target: &&Target| Arc::ptr_eq(&target.root, node);
            2 * targets.iter().filter(is_root).count()
        };
        let free = self.free_parameters(&others);
        let leaves = self.order.iter().filter(|node| node.op().is_none());
        let mut taken = vec![false; targets.len()];
        let mut donations = Vec::new();
        for (parameter, (leaf, is_free)) in leaves.zip(free).enumerate() {
            let fits = |(number, target): (usize, &Target)| {
                let is_free = is_free && !taken[number] && target.place.is_none();
                (is_free && target.root.ty() == leaf.ty()).then_some(number)
            };
            if let Some(result) = targets.iter().enumerate().find_map(fits) {
                taken[result] = true;
                donations.push((parameter, result));
            }
        }
        donations
    }

    /// Of the donations that a compiled graph allows, those that can be made now.
    fn donated(&self, aliases: &[(usize, usize)]) -> Vec<(usize, usize)> {
        let free = self.free_parameters(&|_| 0);
        let is_free = |(parameter, _): &&(usize, usize)| free.get(*parameter) == Some(&true);
        aliases.iter().filter(is_free).copied().collect()
    }
}
