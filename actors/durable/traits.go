package durable

import (
	"github.com/prometheus/client_golang/prometheus"

	"agentsvc/persistence/feed"
	"agentsvc/persistence/journal"
	"agentsvc/persistence/reseal"
	"agentsvc/schemas/id"
	"agentsvc/schemas/msg"
)

// Traits describe a kind to the parts that treat all kinds alike: the journal, the sweep,
// retention and erasure, reseal, the codec, the metrics. They need no node, so the commands
// of an operator use them too. Empty fields mean that the kind has none. cmd/svc holds the
// list of all kinds.
type Traits struct {
	// Name is the kind in addresses and in the rows of timers. The sweep tells the owner
	// of each due timer durable.TimerDue, so timers need no list of their own.
	Name string
	// Tables are the tables that the kind's commits write, each after those that it refers
	// to. Kinds that share tables name the same list.
	Tables []*journal.Table
	// Messages may cross nodes.
	Messages []msg.Type
	// Sealed are the columns of the kind's tables that hold sealed values.
	Sealed []reseal.Column
	// Work, if set, describes how the sweep finds entities with open work and no activation.
	// It wakes them (Wake).
	Work *feed.Work
	// Keep describes the rows that are deleted at a certain age.
	Keep []feed.Retention
	// Erase, if set, describes the rows that are erased after their end user was deleted. End
	// returns the message that makes an actor end an entity that Erase.Lost finds.
	Erase *feed.Erasure
	End   func(entity id.UUID) any
	// Checks are invariants of the kind's rows, for svc doctor.
	Checks []feed.Check
	// Collectors are the kind's own metrics, beside those of the host.
	Collectors []prometheus.Collector
}
