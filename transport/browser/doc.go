// Package browser performs browser skills: it drives a Chromium through the steps of a
// skill.Job and reports what came of it. It is the one door of playwright-go.
//
// # Processes
//
// A node has at most one driver (node, playwright-core) and one Chromium, started with the first
// job and kept. Both are children of this binary's hidden command Command, which lowers their
// priority, cleans their environment, drops root, and makes them die with their parent. What a
// killed process left behind is ended by the next New in the same place (Config.Dir): each
// process has a directory there with a locked file, and its children carry the directory's name
// in their command lines. A browser that dies fails its jobs, and the next job starts another.
// If a browser needs more than Config.Memory, the processes of its pages and their frames end, the largest
// first, or the browser if those hold less than a third of that.
//
// # Sessions
//
// Each job has a context of its own: no cookie, cache or storage is shared. While there is no job, one
// session is made ahead, with its proxy, context and empty page (decision 62). The traffic of a session goes
// through a forward proxy of its own over the outbound guard; Chromium resolves no names itself
// and has no other way out (no QUIC, no WebRTC outside the proxy). A landing of the main frame,
// or one of its redirects, outside the skill's hosts or the tenant's residency ends the job with
// LeftScope. From the commit on, the proxy does not send such a request where it reads it. Dialogs are dismissed, popups closed, downloads and file choosers refused; the step's
// note says so. Permissions and service workers are refused, and popups without a click stopped, by Chromium itself,
// which tells only the page.
//
// # The commit
//
// Session.Commit sends one click. Chromium sends a request again by itself: when a connection that
// it has used before is cut before the head of the answer, after the status 408 on such a
// connection, and after 421. So the tunnels of the session are closed before the click, and from
// then on the proxy reads https too: it ends Chromium's TLS with a certificate that this Chromium
// alone accepts, checks the site's, sends each request once, over a connection of its own, and
// answers 502 whatever Chromium would repeat. A request that was lost in the commit is reported as
// Lost, and nothing else of the session is sent. A session that ends closes its page before its
// connections.
//
// A Chromium elsewhere is told to accept any certificate for that page; from then on the proxy alone
// checks those of sites. The proxy cannot read a site whose certificate is bad or that speaks HTTP/2
// alone. With the node's own Chromium, the tunnel to such a site stays, and Chromium checks the
// certificate; a tunnel that is cut before it was answered is held open without an answer. With a
// Chromium elsewhere, such a site gets no request. If it is one of the skill's hosts, that Chromium
// is told nothing: all tunnels stay, and it goes on checking certificates. Requests that a page's
// own script repeats, or that a site asks for again by a redirect, are sent again.
//
// # Limits
//
// Config.Pages sessions at a time on a node, Config.TenantPages of one tenant; others wait in
// turn, one tenant after the other, at most Config.Queue of them. A step has Config.StepTimeout, a
// prepare, a read, a compensation, and a commit with its verification have Config.JobTimeout
// each.
//
// What pages say is cut in the driver: a message to this process has at most 16 MiB.
//
// Secrets are opened just before they are typed. What shows them is found in a world of scripts that a page
// does not reach, so that no page hears of those of another one. They are removed from every title, address,
// value and message of a report but Read, which is compared and not shown, and painted over in screenshots; while a password field is on
// the page, no screenshot is taken. A sign-in has failed (session_expired) if the field of its
// last password is still visible after the sign-in steps, or, with cookies, if the start page
// shows a password field.
package browser
