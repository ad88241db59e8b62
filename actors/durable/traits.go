package durable

import (
	"github.com/prometheus/client_golang/prometheus"

	"agentsvc/persistence/feed"
	"agentsvc/persistence/journal"
	"agentsvc/persistence/reseal"
	"agentsvc/schemas/id"
	"agentsvc/schemas/msg"
)

// Traits describe a kind to the parts that treat all kinds alike: the journal, the sweep, retention and
// erasure, the move of sealed values to another key, the codec, the metrics. They need no
// node: the commands of an operator use them too. What a kind leaves empty it does not
// have. cmd/svc holds the list of all kinds.
type Traits struct {
	// Name is the kind in addresses and in the rows of timers. The sweep tells the owner
	// of each due timer durable.TimerDue, so timers need no list of their own.
	Name string
	// Tables are the tables that the kind's commits write, each after those that it refers
	// to. Kinds whose rows are in one order name the same list.
	Tables []*journal.Table
	// Messages may cross nodes.
	Messages []msg.Type
	// Sealed are the columns of the kind's tables that hold sealed values.
	Sealed []reseal.Column
	// Work, where set, is how the sweep finds entities that have something to do and no
	// activation. It wakes them (Wake).
	Work *feed.Work
	// Keep is what goes when it is old enough.
	Keep []feed.Retention
	// Erase, where set, is what goes once the end user whom it is about was deleted. End is
	// the message on which an actor ends an entity that Erase.Lost finds.
	Erase *feed.Erasure
	End   func(entity id.UUID) any
	// Checks are invariants of the kind's rows that svc doctor looks at.
	Checks []feed.Check
	// Collectors are the kind's own metrics, beside those of the host.
	Collectors []prometheus.Collector
}
