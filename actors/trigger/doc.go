// Package trigger fires schedules: one actor for each, in the shard of the
// trigger's id, which lives while a due time is worked off.
//
//	TimerDue ──> read the row ──> paused, gone or not due: timer made to agree
//	                   │
//	                   └─ due ──> start the run of this due time ──> move the row
//	                                                                 and its timer
//	                                                                 to the next one
//
// Owner of: next_fire_at, last_fired_at and the timer of a schedule, beside whoever
// changes the trigger.
//
// One firing for each due time: the run's id follows from trigger and due time
// (RunAt), and starting a run that is there starts nothing. So two activations at
// once, and one that dies between the start and the move, come to one run; the row
// moves only from the due time that was fired. Due times that passed while nobody
// was there come to one run, that of the first of them. A target without a published
// version is passed over, and the schedule goes on.
//
// Order: due times of one schedule are fired one after another, those of different
// ones in any order.
//
// Limits: Receive waits for nothing; at most Config.Most firings of a node are at
// work, further ones wait in their activations.
//
// Loss: none. A firing that could not be carried out leaves its timer, which comes
// due again when the sweep's claim on it ends. When a hook or a person last fired a
// trigger (Fired) is noted in a moment, and what was not noted yet ends with its
// node.
package trigger
