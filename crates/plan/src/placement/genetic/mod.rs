//! `genetic`: plans that compete, mix and change (section 6.2, table 6.4, Algorithms 6.1 to 6.3).

mod borders;
mod fitness;
mod operators;

use tessera_core::{Error, Random, Result};

use super::cost_model::{OccupiedNodes, PlacementCostModel};
use super::strategy::{PlacementOptions, PlacementProposal, PlacementStrategy};
use crate::Strategy;
use borders::best_borders;
use fitness::FitnessFunction;
use operators::{
    enforce_adjacency, enforce_tiers, happens_by_chance, random_below, random_genes, random_runs,
    run_mutation, tail_crossover, uniform_crossover, uniform_mutation,
};

/// Nodes that are tried beside those of a plan that gets the best borders.
const ADDED: usize = 2;

/// A genetic algorithm.
#[derive(Clone, Debug, PartialEq)]
pub struct GeneticPlacement {
    /// How many chromosomes there are.
    pub population: usize,
    /// How many compete for each place in the next generation.
    pub tournament: usize,
    /// Share of pairs that mix.
    pub crossover: f64,
    /// Share of genes that they swap.
    pub crossover_genes: f64,
    /// Share of chromosomes that change.
    pub mutation: f64,
    /// Share of genes that change in them.
    pub mutation_genes: f64,
    /// Generations without a better plan after which it ends.
    pub patience: usize,
    /// Most generations.
    pub generations: usize,
    /// Whether chromosomes are taken as runs of layers: what this adds to the thesis' algorithm.
    pub runs: bool,
    /// Share of chromosomes in which a run changes, where they are taken as such.
    pub run_mutation: f64,
    /// How many of the fittest get the best borders in each generation, where they are taken as
    /// such.
    pub improved: usize,
}

impl GeneticPlacement {
    /// The algorithm of the thesis, without additions.
    pub const THESIS: Self = Self {
        population: 1000,
        tournament: 3,
        crossover: 0.8,
        crossover_genes: 0.5,
        mutation: 0.02,
        mutation_genes: 0.5,
        patience: 10,
        generations: 1000,
        runs: false,
        run_mutation: 0.0,
        improved: 0,
    };

    /// With runs of layers. The smallest population that found the optimum of all of 87 problems
    /// with each of 5 to 20 seeds is a third of this.
    pub const DEFAULT: Self = Self {
        population: 300,
        patience: 30,
        runs: true,
        run_mutation: 0.4,
        improved: 32,
        ..Self::THESIS
    };
}

impl Default for GeneticPlacement {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl Strategy for GeneticPlacement {
    fn name(&self) -> &str {
        if self.runs { "genetic" } else { "genetic-thesis" }
    }

    fn one_line_summary(&self) -> &str {
        if self.runs {
            "plans that compete, mix and change, the fittest with the best borders for their nodes"
        } else {
            "the genetic algorithm as the thesis has it (table 6.4), for comparison"
        }
    }
}

impl PlacementStrategy for GeneticPlacement {
    fn propose_placement(
        &self,
        cost_model: &PlacementCostModel<'_>,
        options: &PlacementOptions<'_>,
    ) -> Result<PlacementProposal> {
        for (number, chain) in cost_model.chains.iter().enumerate() {
            let nowhere = (0..chain.layers).find(|&layer| {
                (0..cost_model.network.nodes).all(|node| chain.furthest_end(node, layer) == layer)
            });
            if let Some(layer) = nowhere {
                return Err(cost_model.does_not_fit(number, layer).with_context(self.name()));
            }
        }
        let mut evolution = Evolution::new(self, cost_model, options.seed);
        let mut generation = 0;
        let mut stale = 0;
        while generation < self.generations && stale < self.patience && !options.limit.is_reached()
        {
            generation += 1;
            if evolution.next_generation() {
                stale = 0;
            } else {
                stale += 1;
            }
        }
        let fittest = &evolution.fittest;
        if !evolution.fitness_function.is_valid_fitness(fittest.fitness) {
            return Err(Error::invalid(format!(
                "{}: no plan in {generation} generations of {} met the constraints; exact can tell whether there is one",
                self.name(),
                self.population
            )));
        }
        let mut rest = &fittest.genes[..];
        let mut nodes = Vec::with_capacity(cost_model.chains.len());
        for chain in &cost_model.chains {
            let (genes, others) = rest.split_at(chain.layers);
            nodes.push(genes.to_vec());
            rest = others;
        }
        Ok(PlacementProposal { nodes, bound_seconds: None, front: Vec::new() })
    }
}

/// A plan: the nodes of all layers of all models, one after the other.
#[derive(Clone, Debug)]
struct Chromosome {
    genes: Vec<usize>,
    fitness: f64,
}

/// A population and what changes it.
struct Evolution<'a> {
    settings: &'a GeneticPlacement,
    cost_model: &'a PlacementCostModel<'a>,
    fitness_function: FitnessFunction<'a>,
    random: Random,
    population: Vec<Chromosome>,
    /// The best so far.
    fittest: Chromosome,
    /// Where each node has its last layer, while a chromosome is repaired.
    last: Vec<usize>,
}

impl<'a> Evolution<'a> {
    fn new(
        settings: &'a GeneticPlacement,
        cost_model: &'a PlacementCostModel<'a>,
        seed: u64,
    ) -> Self {
        let mut random = Random::new(seed);
        let mut fitness_function = FitnessFunction::new(cost_model, settings.runs);
        let length = cost_model.chains.iter().map(|chain| chain.layers).sum();
        let network = &cost_model.network;
        let mut population = Vec::with_capacity(settings.population.max(2));
        while population.len() < settings.population.max(2) {
            let mut genes = vec![0; length];
            let mut rest = &mut genes[..];
            for chain in &cost_model.chains {
                let (own, others) = rest.split_at_mut(chain.layers);
                if settings.runs {
                    random_runs(&mut random, network, own);
                } else {
                    random_genes(&mut random, network.nodes, own);
                }
                rest = others;
            }
            let fitness = fitness_function.fitness_of(&genes);
            population.push(Chromosome { genes, fitness });
        }
        let fittest = population[fittest_index(&population)].clone();
        let last = vec![0; network.nodes];
        Self { settings, cost_model, fitness_function, random, population, fittest, last }
    }

    /// Whether the next generation has a fitter one than all before.
    fn next_generation(&mut self) -> bool {
        let mut next: Vec<Chromosome> = (0..self.population.len())
            .map(|_| {
                let drawn = (0..self.settings.tournament.max(1))
                    .map(|_| random_below(&mut self.random, self.population.len()));
                let winner = drawn.min_by(|&one, &other| {
                    self.population[one].fitness.total_cmp(&self.population[other].fitness)
                });
                self.population[winner.unwrap_or(0)].clone()
            })
            .collect();
        for pair in next.chunks_exact_mut(2) {
            if let [one, other] = pair
                && happens_by_chance(&mut self.random, self.settings.crossover)
            {
                self.cross_over(&mut one.genes, &mut other.genes);
            }
        }
        for chromosome in &mut next {
            self.mutate_and_repair(&mut chromosome.genes);
            chromosome.fitness = self.fitness_function.fitness_of(&chromosome.genes);
        }
        self.population = next;
        if self.settings.runs {
            self.improve_fittest();
        }
        let fittest = &self.population[fittest_index(&self.population)];
        let fitter = fittest.fitness < self.fittest.fitness;
        if fitter {
            self.fittest = fittest.clone();
        }
        fitter
    }

    fn cross_over(&mut self, one: &mut [usize], other: &mut [usize]) {
        let mut offset = 0;
        for chain in &self.cost_model.chains {
            let genes = offset..offset + chain.layers;
            let (one, other) = (&mut one[genes.clone()], &mut other[genes]);
            if self.settings.runs && self.random.next_below(2) == 0 {
                tail_crossover(&mut self.random, one, other);
            } else {
                uniform_crossover(&mut self.random, self.settings.crossover_genes, one, other);
            }
            offset += chain.layers;
        }
    }

    fn mutate_and_repair(&mut self, genes: &mut [usize]) {
        let network = &self.cost_model.network;
        if happens_by_chance(&mut self.random, self.settings.mutation) {
            let share = self.settings.mutation_genes;
            uniform_mutation(&mut self.random, share, network.nodes, genes);
        }
        let changes =
            self.settings.runs && happens_by_chance(&mut self.random, self.settings.run_mutation);
        let changed = random_below(&mut self.random, self.cost_model.chains.len());
        let mut rest = genes;
        for (number, chain) in self.cost_model.chains.iter().enumerate() {
            let (genes, others) = rest.split_at_mut(chain.layers);
            if changes && number == changed {
                run_mutation(&mut self.random, network.nodes, genes);
            }
            enforce_tiers(network, genes);
            enforce_adjacency(&mut self.last, genes);
            rest = others;
        }
    }

    /// Gives the fittest the best borders for their nodes, and brings back the best so far.
    fn improve_fittest(&mut self) {
        let mut order: Vec<usize> = (0..self.population.len()).collect();
        order.sort_by(|&one, &other| {
            self.population[one].fitness.total_cmp(&self.population[other].fitness)
        });
        let mut improved: Vec<Chromosome> = Vec::new();
        for &at in &order {
            if improved.len() >= self.settings.improved {
                break;
            }
            // The same plan again has the same borders.
            if improved.iter().any(|seen| seen.genes == self.population[at].genes) {
                continue;
            }
            let mut better = self.population[at].clone();
            for model in 0..self.cost_model.chains.len() {
                self.improve_model(&mut better, model);
            }
            improved.push(better);
        }
        improved.push(self.fittest.clone());
        for (chromosome, &at) in improved.into_iter().zip(order.iter().rev()) {
            self.population[at] = chromosome;
        }
    }

    fn improve_model(&mut self, chromosome: &mut Chromosome, model: usize) {
        let (cost_model, network) = (self.cost_model, &self.cost_model.network);
        let offset: usize = cost_model.chains[..model].iter().map(|chain| chain.layers).sum();
        let chain = &cost_model.chains[model];
        let genes = offset..offset + chain.layers;
        let mut row: Vec<usize> = chromosome.genes[genes.clone()].to_vec();
        row.dedup();
        // A few more nodes to choose from; the best borders leave out those that don't help.
        for _ in 0..ADDED {
            let node = random_below(&mut self.random, network.nodes);
            if row.contains(&node) {
                continue;
            }
            let tier = network.tiers[node];
            let low = row.iter().take_while(|&&other| network.tiers[other] < tier).count();
            let high = row.iter().take_while(|&&other| network.tiers[other] <= tier).count();
            row.insert(low + random_below(&mut self.random, high - low + 1), node);
        }
        let beside = (cost_model.chains.len() > 1).then(|| {
            let mut occupied = OccupiedNodes::empty(network.nodes);
            let mut offset = 0;
            for (number, other) in cost_model.chains.iter().enumerate() {
                if number != model {
                    let nodes = &chromosome.genes[offset..offset + other.layers];
                    occupied.add_model(&cost_model.models[number], nodes);
                }
                offset += other.layers;
            }
            cost_model.chain_beside(model, &occupied)
        });
        let Some(better) = best_borders(beside.as_ref().unwrap_or(chain), network, &row) else {
            return;
        };
        let mut changed = chromosome.genes.clone();
        changed[genes].copy_from_slice(&better);
        let fitness = self.fitness_function.fitness_of(&changed);
        if fitness < chromosome.fitness {
            *chromosome = Chromosome { genes: changed, fitness };
        }
    }
}

fn fittest_index(population: &[Chromosome]) -> usize {
    let order = |&one: &usize, &other: &usize| {
        population[one].fitness.total_cmp(&population[other].fitness)
    };
    (0..population.len()).min_by(order).unwrap_or(0)
}
