package thread

import (
	"agentsvc/actors/durable"
	"agentsvc/persistence/engine"
	"agentsvc/persistence/feed"
	"agentsvc/schemas/id"
	"agentsvc/schemas/msg"
)

// Traits describe the kind thread.
var Traits = durable.Traits{
	Name:   msg.KindThread,
	Tables: engine.Tables,
	Erase:  feed.PersonalThreads,
	End: func(thread id.UUID) any {
		return msg.DeleteThread{Op: id.OpID{UUID: id.New(thread.Shard())}, By: msg.By{Actor: msg.System}}
	},
	Messages: []msg.Type{
		msg.Of[msg.Post]("post"), msg.Of[msg.Posted]("posted"), msg.Of[msg.DeleteThread]("delete_thread"), msg.Of[msg.RunEnded]("run_ended"),
	},
}
