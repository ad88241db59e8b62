module agentsvc/bench/webhookcheck

go 1.26.0

require agentsvc v0.0.0

require github.com/robfig/cron/v3 v3.0.1 // indirect

replace agentsvc => ../..
