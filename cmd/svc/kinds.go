package main

import (
	"slices"

	"agentsvc/actors/approval"
	"agentsvc/actors/delivery"
	"agentsvc/actors/durable"
	"agentsvc/actors/run"
	"agentsvc/actors/thread"
	"agentsvc/actors/trigger"
	"agentsvc/persistence/journal"
	"agentsvc/persistence/reseal"
	"agentsvc/persistence/store"
	"agentsvc/schemas/msg"
)

// kinds is the one list of durable kinds. What treats all kinds alike goes over it.
var kinds = []durable.Traits{run.Traits, thread.Traits, approval.Traits, delivery.Traits, trigger.Traits}

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
