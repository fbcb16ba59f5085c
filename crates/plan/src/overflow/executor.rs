//! The executor: when each block of a plan runs.
//!
//! Each device has a queue of its own, and runs one block at a time. A block is put on its device's
//! queue as soon as all that it takes is there, and first come is first served; of those that come
//! at the same time, the one that the graph lists first. When a block ends and its only user takes
//! nothing else and is on the same device, that one is run at once, past the queue: a chain pays
//! for the queue once.
//!
//! A copy between the devices starts when what it copies is made, and takes the latency and its
//! bytes divided by the rate. Copies keep no device busy and don't wait for each other, as in the
//! paper's constraint 5. Every edge is copied by itself, also where two blocks take the same
//! tensor.
//!
//! A plan may say more: an order in which the devices take their blocks, whatever comes first; or
//! that it is run as most runtimes do, one block after the other from a list, with copies in
//! between. There is no queue then, and nothing to pay for it.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::graph::{EdgeEnd, NO_BLOCK, OverflowGraph};
use super::plan::OverflowPlan;
use super::problem::OverflowDevice;

/// When each block was ready, taken and through.
pub(super) struct ExecutionTimes {
    pub(super) ready: Vec<f64>,
    pub(super) start: Vec<f64>,
    pub(super) end: Vec<f64>,
    /// How long each waited for its device.
    pub(super) waited: Vec<f64>,
    /// What was copied when.
    pub(super) transfers: Vec<DeviceTransfer>,
    /// When the last block was through, and all results with the host.
    pub(super) makespan_us: f64,
}

/// A copy between the devices.
pub(super) struct DeviceTransfer {
    /// The block that made it; [`NO_BLOCK`] for an input of the model.
    pub(super) from: u32,
    /// The block that takes it; [`NO_BLOCK`] for a result of the model.
    pub(super) to: u32,
    /// The edge, where it is one.
    pub(super) edge: u32,
    /// Where to.
    pub(super) device: OverflowDevice,
    pub(super) start: f64,
    pub(super) end: f64,
}

/// Runs a plan that fits the graph.
pub(super) fn execute_plan(graph: &OverflowGraph, plan: &OverflowPlan) -> ExecutionTimes {
    let order: Option<Vec<u32>> =
        plan.order.as_ref().map(|order| order.iter().map(|&block| block as u32).collect());
    match (order, plan.sequential) {
        (order, true) => one_by_one(graph, &plan.devices, order.as_ref().unwrap_or(&graph.order)),
        (Some(order), false) => in_order(graph, &plan.devices, &order),
        (None, false) => first_come(graph, &plan.devices),
    }
}

impl ExecutionTimes {
    fn new(count: usize) -> Self {
        let zeros = || vec![0.0; count];
        Self {
            ready: zeros(),
            start: zeros(),
            end: zeros(),
            waited: zeros(),
            transfers: Vec::new(),
            makespan_us: 0.0,
        }
    }

    /// Notes that a block was taken and is through at `end`.
    fn set_run_times(&mut self, block: usize, start: f64, end: f64) {
        self.start[block] = start;
        self.end[block] = end;
        self.waited[block] = start - self.ready[block];
    }

    /// Adds the copies, which start when what they copy is made.
    fn with_transfers(mut self, graph: &OverflowGraph, devices: &[OverflowDevice]) -> Self {
        for &block in &graph.order {
            let (number, device) = (block as usize, devices[block as usize]);
            let mut transfer =
                |from: u32, to: u32, edge: u32, device: OverflowDevice, start: f64, us: f64| {
                    self.transfers.push(DeviceTransfer {
                        from,
                        to,
                        edge,
                        device,
                        start,
                        end: start + us,
                    });
                };
            let (input, output) =
                (graph.inputs[number][device as usize], graph.outputs[number][device as usize]);
            if input > 0.0 {
                transfer(NO_BLOCK, block, NO_BLOCK, device, 0.0, input);
            }
            for link in graph
                .predecessors(number)
                .iter()
                .filter(|link| crosses_devices(link, device, devices))
            {
                let made = self.end[link.block as usize];
                transfer(link.block, block, link.edge, device, made, link.copy_us[device as usize]);
            }
            if output > 0.0 {
                transfer(block, NO_BLOCK, NO_BLOCK, OverflowDevice::Cpu, self.end[number], output);
            }
        }
        self
    }
}

/// Whether what a block on `device` takes through `link` is made on the other device.
fn crosses_devices(link: &EdgeEnd, device: OverflowDevice, devices: &[OverflowDevice]) -> bool {
    devices[link.block as usize] != device
}

/// What happens.
enum ExecutorEvent {
    /// A block is through.
    End(u32),
    /// All that a block takes is there.
    Ready(u32),
}

/// Both devices, each with its queue.
struct DeviceQueues<'a> {
    graph: &'a OverflowGraph,
    devices: &'a [OverflowDevice],
    /// By time, of which the bits sort as none is negative; then by the block's place in the graph.
    events: BinaryHeap<Reverse<(u64, u32, bool)>>,
    waiting: [BinaryHeap<Reverse<(u64, u32)>>; 2],
    busy: [bool; 2],
}

impl DeviceQueues<'_> {
    fn push(&mut self, at: f64, event: &ExecutorEvent) {
        let (block, is_end) = match *event {
            ExecutorEvent::End(block) => (block, true),
            ExecutorEvent::Ready(block) => (block, false),
        };
        self.events.push(Reverse((at.to_bits(), self.graph.places[block as usize], is_end)));
    }

    fn pop(&mut self, until: Option<f64>) -> Option<(f64, ExecutorEvent)> {
        let &Reverse((bits, place, is_end)) = self.events.peek()?;
        let at = f64::from_bits(bits);
        if until.is_some_and(|until| at > until) {
            return None;
        }
        self.events.pop();
        let block = self.graph.order[place as usize];
        Some((at, if is_end { ExecutorEvent::End(block) } else { ExecutorEvent::Ready(block) }))
    }

    fn start_block(&mut self, times: &mut ExecutionTimes, block: u32, at: f64, dispatch: f64) {
        let (number, device) = (block as usize, self.devices[block as usize] as usize);
        let end = at + dispatch + self.graph.times[number][device];
        times.set_run_times(number, at, end);
        times.makespan_us = times.makespan_us.max(end + self.graph.outputs[number][device]);
        self.busy[device] = true;
        self.push(end, &ExecutorEvent::End(block));
    }
}

/// First come, first served.
pub(super) fn first_come(graph: &OverflowGraph, devices: &[OverflowDevice]) -> ExecutionTimes {
    let mut times = ExecutionTimes::new(graph.len());
    let mut missing: Vec<usize> =
        (0..graph.len()).map(|block| graph.predecessors(block).len()).collect();
    let (events, waiting) = (BinaryHeap::new(), [BinaryHeap::new(), BinaryHeap::new()]);
    let mut queues = DeviceQueues { graph, devices, events, waiting, busy: [false; 2] };
    for block in 0..graph.len() {
        times.ready[block] = graph.inputs[block][devices[block] as usize];
        if missing[block] == 0 {
            queues.push(times.ready[block], &ExecutorEvent::Ready(block as u32));
        }
    }
    while let Some((now, first)) = queues.pop(None) {
        // All that happens at this moment, before a device chooses.
        let mut event = Some(first);
        while let Some(happened) = event {
            match happened {
                ExecutorEvent::Ready(block) => {
                    let key = (now.to_bits(), graph.places[block as usize]);
                    queues.waiting[devices[block as usize] as usize].push(Reverse(key));
                }
                ExecutorEvent::End(block) => {
                    let device = devices[block as usize];
                    queues.busy[device as usize] = false;
                    for link in graph.successors(block as usize) {
                        let user = link.block as usize;
                        let to = devices[user];
                        let copy = if to == device { 0.0 } else { link.copy_us[to as usize] };
                        times.ready[user] = times.ready[user].max(now + copy);
                        missing[user] -= 1;
                        if missing[user] > 0 {
                            continue;
                        }
                        if graph.chained_to[user] == block && to == device {
                            queues.start_block(&mut times, link.block, now, 0.0);
                        } else {
                            queues.push(times.ready[user], &ExecutorEvent::Ready(link.block));
                        }
                    }
                }
            }
            event = queues.pop(Some(now)).map(|(_, event)| event);
        }
        for device in 0..2 {
            if !queues.busy[device]
                && let Some(Reverse((_, place))) = queues.waiting[device].pop()
            {
                queues.start_block(&mut times, graph.order[place as usize], now, graph.dispatch_us);
            }
        }
    }
    times.with_transfers(graph, devices)
}

/// Each device takes its blocks in this order, and waits for the next one where it isn't ready.
fn in_order(graph: &OverflowGraph, devices: &[OverflowDevice], order: &[u32]) -> ExecutionTimes {
    let mut times = ExecutionTimes::new(graph.len());
    let mut line = DeviceTimelines::new(graph);
    for &block in order {
        let number = block as usize;
        let (ready, start) = line.run_next(devices, &mut times.end, block);
        times.ready[number] = ready;
        let end = times.end[number];
        times.set_run_times(number, start, end);
    }
    times.makespan_us = line.makespan_us;
    times.with_transfers(graph, devices)
}

/// Two devices that take their blocks in an order: what searches ask over and over.
#[derive(Clone, Copy)]
pub(super) struct DeviceTimelines<'a> {
    graph: &'a OverflowGraph,
    /// When each device is free.
    pub(super) free: [f64; 2],
    /// The last block of each device.
    pub(super) last: [u32; 2],
    /// So far.
    pub(super) makespan_us: f64,
}

impl<'a> DeviceTimelines<'a> {
    pub(super) fn new(graph: &'a OverflowGraph) -> Self {
        Self { graph, free: [0.0; 2], last: [NO_BLOCK; 2], makespan_us: 0.0 }
    }

    /// Runs the next block, and returns when it was ready and when its device took it.
    #[inline]
    pub(super) fn run_next(
        &mut self,
        devices: &[OverflowDevice],
        ends: &mut [f64],
        block: u32,
    ) -> (f64, f64) {
        let (number, device) = (block as usize, devices[block as usize]);
        let ready = self.ready_time(devices, ends, block, device);
        let start = ready.max(self.free[device as usize]);
        let end = start + self.busy_time(block, device);
        ends[number] = end;
        self.free[device as usize] = end;
        self.last[device as usize] = block;
        self.makespan_us = self.makespan_us.max(end + self.graph.outputs[number][device as usize]);
        (ready, start)
    }

    /// When all that a block takes is on `device`.
    #[inline]
    fn ready_time(
        &self,
        devices: &[OverflowDevice],
        ends: &[f64],
        block: u32,
        device: OverflowDevice,
    ) -> f64 {
        let mut ready = self.graph.inputs[block as usize][device as usize];
        for link in self.graph.predecessors(block as usize) {
            let copy = if crosses_devices(link, device, devices) {
                link.copy_us[device as usize]
            } else {
                0.0
            };
            ready = ready.max(ends[link.block as usize] + copy);
        }
        ready
    }

    /// How long a block keeps its device busy if it is the next one.
    #[inline]
    fn busy_time(&self, block: u32, device: OverflowDevice) -> f64 {
        let before = self.graph.chained_to[block as usize];
        let is_chained = before != NO_BLOCK && before == self.last[device as usize];
        let dispatch = if is_chained { 0.0 } else { self.graph.dispatch_us };
        dispatch + self.graph.times[block as usize][device as usize]
    }
}

/// One block after the other, whatever its device, with copies in between.
fn one_by_one(graph: &OverflowGraph, devices: &[OverflowDevice], order: &[u32]) -> ExecutionTimes {
    let mut times = ExecutionTimes::new(graph.len());
    let mut now = 0.0;
    for &block in order {
        let (number, device) = (block as usize, devices[block as usize]);
        let begin: f64 = now;
        let mut copy = |from: u32, to: u32, edge: u32, device: OverflowDevice, us: f64| {
            let start = now;
            now += us;
            times.transfers.push(DeviceTransfer { from, to, edge, device, start, end: now });
        };
        let input = graph.inputs[number][device as usize];
        if input > 0.0 {
            copy(NO_BLOCK, block, NO_BLOCK, device, input);
        }
        let mut ready: f64 = 0.0;
        for link in graph.predecessors(number) {
            ready = ready.max(times.end[link.block as usize]);
            if crosses_devices(link, device, devices) {
                copy(link.block, block, link.edge, device, link.copy_us[device as usize]);
            }
        }
        let end = now + graph.times[number][device as usize];
        times.ready[number] = ready;
        times.set_run_times(number, now, end);
        times.waited[number] = begin - ready;
        now = end;
        let output = graph.outputs[number][device as usize];
        if output > 0.0 {
            times.transfers.push(DeviceTransfer {
                from: block,
                to: NO_BLOCK,
                edge: NO_BLOCK,
                device: OverflowDevice::Cpu,
                start: now,
                end: now + output,
            });
            now += output;
        }
    }
    times.makespan_us = now;
    times
}
