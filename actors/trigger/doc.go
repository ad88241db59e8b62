// Package trigger fires schedules. Each schedule has an actor, which is in memory only
// while it handles a due time.
//
// I am the row triggers/<id>; my address is trigger/<tenant>/<trigger id>. The sweep tells
// me that my timer is due. I ask the actor of a run to start it, and commit my next due
// time once it has started.
//
//	                 early, paused, deleted: the timer is made to agree with the row
//	                +------+
//	                v      |
//	TimerDue ---> waiting -+--- due ---> firing: the run of this due time is started
//	                ^                       |
//	                +---- committed: -------+--- failed: the timer comes due again
//	                      next due time and timer
//
// Owner of: next_fire_at, last_fired_at, version and owner_epoch of a schedule, and its
// timer. The API changes the same row when a person changes the trigger, and counts the
// version up. If that happens during a firing, my commit misses its swap: the host drops
// my memory, and I decide again on the row as it is.
//
// Each due time starts one run: the run's id is derived from the trigger and the due time
// (RunAt), and starting a run that exists has no effect. So two activations at once, or a
// crash between the start and the commit, lead to one run. Due times that passed while no
// node was up lead to one run, that of the first of them. If the target cannot be started,
// for example because no version is published, the due time passes without a run.
//
// Order: due times of one schedule fire one after another; schedules fire in any order.
//
// Limits: a node starts at most Config.Most runs at a time, of one tenant at most
// Config.Each. Further firings wait, and the tenants that wait take turns.
//
// Loss: none. The start of a firing is not committed: if the firing fails or its node dies,
// the timer comes due again when the sweep's claim on it ends.
//
// I leave memory when no firing is under way.
package trigger
