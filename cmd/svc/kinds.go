package main

import (
	"context"
	"path/filepath"
	"slices"
	gosync "sync"

	"agentsvc/actors/approval"
	"agentsvc/actors/delivery"
	"agentsvc/actors/durable"
	"agentsvc/actors/ingest"
	"agentsvc/actors/limit/slot"
	"agentsvc/actors/run"
	"agentsvc/actors/skillrun"
	"agentsvc/actors/stream"
	"agentsvc/actors/sweep"
	"agentsvc/actors/sync"
	"agentsvc/actors/thread"
	"agentsvc/actors/trigger"
	"agentsvc/actors/workflow"
	"agentsvc/cluster"
	"agentsvc/persistence/feed"
	"agentsvc/persistence/journal"
	"agentsvc/persistence/knowledge"
	"agentsvc/persistence/reseal"
	"agentsvc/persistence/rollup"
	"agentsvc/persistence/store"
	"agentsvc/schemas/id"
	"agentsvc/schemas/msg"
	"agentsvc/transport/platform"
)

// kind is a durable kind: its traits, and the method that registers it with what it needs.
type kind struct {
	durable.Traits
	add func(*service, durable.Config)
}

// kinds is the one list of durable kinds. Everything that treats all kinds alike iterates
// over it.
var kinds = []kind{
	{run.Traits, (*service).addRuns},
	{thread.Traits, (*service).addThreads},
	{approval.Traits, (*service).addApprovals},
	{delivery.Traits, (*service).addDeliveries},
	{trigger.Traits, (*service).addTriggers},
	{workflow.Traits, (*service).addWorkflows},
	{sync.Traits, (*service).addSyncs},
	{ingest.Traits, (*service).addIngests},
	{skillrun.Traits, (*service).addSkillRuns},
}

// actors is the part of a node with its streams and durable kinds.
type actors struct {
	hubs     *stream.Hubs
	slots    *slot.Queue // nil: running runs are not limited
	versions *platform.Versions
	fired    *store.Fired
	sweeper  *sweep.Sweep
	folder   *rollup.Folder
}

// maxEffects returns how many effects of one kind a node performs at a time: most of them, turns
// of models and calls of tools, hold a connection of their own.
func maxEffects() int {
	const most = 1 << 16
	if own := descriptors() / 4; own > 0 {
		return min(own, most)
	}
	return most
}

func (s *service) addActors(ctx context.Context) error {
	s.addStreams()
	if err := s.addSlots(ctx); err != nil {
		return err
	}
	s.versions = platform.NewVersions(s.tables, s.trusted)
	for _, k := range kinds {
		k.add(s, durable.Config{Log: s.log, Now: s.member.Now, MaxEffects: maxEffects()})
	}
	return nil
}

// addSweep adds the search for due timers and for entities with open work.
func (s *service) addSweep(context.Context) error {
	s.sweeper = sweep.New(sweep.Config{Node: s.node, Rows: s.sweeps, Kinds: traits(), Retentions: store.Retentions, Member: s.self, Live: s.live,
		Files: files{s.blobs, store.NewFiles(s.pools.system)}, Log: s.log})
	s.node.OnChange(func(c cluster.Change) { s.sweeper.Gained(c.Gained) })
	s.folder = rollup.New(rollup.Config{Pool: s.pools.system, Live: s.live, Log: s.log})
	return nil
}

func (s *service) addRuns(host durable.Config) {
	runs := run.Config{Store: s.reads, Models: s.models, Live: s.hubs, Sealer: s.keys, Tell: s.node,
		Attachments: attachments{s.blobs}, Artifacts: artifacts{s.blobs}, Tools: s.tools, Retriever: s.tools, Spans: s.tracer, EscalateFraction: s.c.Escalation,
		Hears: s.sent.hearers.Hears, Holder: s.holder(), PublicURL: s.c.PublicURL, Now: s.member.Now, Log: s.log}
	if s.slots != nil {
		runs.Slots, runs.TakeSlot = s.slots, s.slots.Take
	}
	durable.Register(s.node, s.writer, run.New(runs), host)
}

func (s *service) addThreads(host durable.Config) {
	thread.Register(s.node, s.writer, thread.Config{Store: s.reads, Tell: s.node, Published: s.versions.Published, Version: s.versions.Speaking,
		Ready: run.Kept{Ready: true}.Encode(), Log: s.log}, host)
}

func (s *service) addApprovals(host durable.Config) {
	durable.Register(s.node, s.writer, approval.New(approval.Config{Store: s.reads, Vault: s.keys, Tell: s.node, Seal: s.tables.SealAnswer, Hears: s.sent.hearers.Hears, PublicURL: s.c.PublicURL, Skills: s.tools, Secrets: s.tools, Log: s.log}), host)
}

func (s *service) addDeliveries(durable.Config) {
	delivery.Register(s.node, delivery.Config{Outbox: s.out, Endpoints: s.sent.targets, Sender: sender{s.attempts}, Spans: s.tracer, Backoff: s.c.WebhookBackoff, Live: s.live, Now: s.member.Now, Log: s.log})
}

func (s *service) addTriggers(host durable.Config) {
	schedules := store.NewSchedules(s.pools.system)
	trigger.Register(s.node, s.writer, trigger.Config{Store: schedules, Runs: admitted{s.node, s.writer, s.member}, Log: s.log}, host)
	s.fired = store.NewFired(store.FiredConfig{Note: schedules.NoteFired, Noted: s.triggerFired, Count: trigger.CountFired, Now: s.member.Now, Log: s.log})
}

func (s *service) addWorkflows(host durable.Config) {
	workflows := workflow.Config{Store: s.reads, Live: s.hubs, Sealer: s.keys, Actors: s.node, Published: store.NewSchedules(s.pools.system).Published,
		Tools: s.tools, Spans: s.tracer, Ready: run.Kept{Ready: true}.Encode(), Hears: s.sent.hearers.Hears, Holder: s.holder(), PublicURL: s.c.PublicURL, EscalateFraction: s.c.Escalation, Now: s.member.Now, Log: s.log}
	if s.slots != nil {
		workflows.Slots, workflows.TakeSlot = s.slots, s.slots.Take
	}
	durable.Register(s.node, s.writer, workflow.New(workflows), host)
}

func (s *service) addSyncs(host durable.Config) {
	syncs := store.NewSyncs(s.pools.system, s.keys)
	syncs.OnChange(s.changed)
	syncs.OnlyWhile(s.live)
	sync.Register(s.node, s.writer, sync.Config{Store: syncs, Files: contents{s.blobs}, Connect: s.connectors.Open,
		Tell: s.node, Hears: s.sent.hearers.Hears, Log: s.log}, host)
}

func (s *service) addIngests(host durable.Config) {
	ingest.Register(s.node, s.writer, ingest.Config{Store: knowledge.NewChunks(s.pools.system), Files: contents{s.blobs}, Parser: s.parser, Embedder: s.models,
		Dir: filepath.Join(absolute(s.c.DataDir), "reading"), Log: s.log}, host)
}

func (s *service) addSkillRuns(host durable.Config) {
	closing := new(gosync.WaitGroup) // pages
	s.onStop(func(context.Context) error { closing.Wait(); return nil })
	skillrun.Register(s.node, s.writer, skillrun.Config{Store: store.NewSkillRuns(s.pools.system), Browser: skillrun.Adapt(s.browser, closing.Go), Secrets: secrets{s.tables}, Files: screenshots{s.blobs}, Grants: s.tools, Vault: s.keys,
		Changed: s.skills.Changed, Hears: s.sent.hearers.Hears, Holder: s.holder(), Log: s.log}, host)
}

// holder returns what finds the member at which an entity is active (durable.Holder), nil for a single node.
func (s *service) holder() func(context.Context, cluster.Address) id.MemberID {
	if s.mesh == nil {
		return nil
	}
	return durable.Holder(s.node, s.living)
}

// addStreams adds the hubs of running runs, from which event streams read.
func (s *service) addStreams() {
	watched := stream.Config{Node: s.node, Source: feed.New(s.pools.api), Heads: s.sweeps, Log: s.log}
	if s.mesh != nil {
		watched.Peers, watched.Carrier, watched.Holds = s.node, s.mesh.feed, s.node.Holds
		watched.Lives = s.lives
		durable.ServeHolder(s.node)
	}
	s.hubs = stream.New(watched)
	s.node.Serve(stream.Service, s.hubs.ServeWatch)
}

// addSlots adds the slots of running runs, if a tenant's running runs are limited.
func (s *service) addSlots(ctx context.Context) error {
	if s.c.RunConcurrency == 0 {
		return nil
	}
	s.slots = slot.NewQueue(s.node)
	s.node.Register(slot.Kind, slot.New(slot.Config{Limit: s.c.RunConcurrency, Running: s.sweeps, Agreed: 5 * s.c.Lease, Log: s.log}))
	s.node.OnChange(s.slots.Changed)
	if err := s.slots.Start(ctx); err != nil {
		return err
	}
	s.onStop(infallible(s.slots.Stop))
	return nil
}

// traits returns the traits of all kinds.
func traits() []durable.Traits {
	list := make([]durable.Traits, len(kinds))
	for i, k := range kinds {
		list[i] = k.Traits
	}
	return list
}

// sealedColumns are all columns of sealed values: of the kinds, and of the tables without
// a kind.
func sealedColumns() []reseal.Column {
	columns := slices.Clone(store.Sealed)
	for _, k := range kinds {
		columns = append(columns, k.Sealed...)
	}
	return columns
}

// tablesOfKinds are the tables of the kinds, each once, in the order of a flush.
func tablesOfKinds() (list []*journal.Table) {
	for _, k := range kinds {
		for _, t := range k.Tables {
			if !slices.Contains(list, t) {
				list = append(list, t)
			}
		}
	}
	return list
}

// messages are the types of the kinds' messages.
func messages() (types []msg.Type) {
	for _, k := range kinds {
		types = append(types, k.Messages...)
	}
	return types
}
