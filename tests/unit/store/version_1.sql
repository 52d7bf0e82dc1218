-- A store as version 1 of the schema made it: what an upgrade starts from.
BEGIN TRANSACTION;
CREATE TABLE attempts (
	id TEXT NOT NULL,
	job TEXT NOT NULL,
	run BIGINT NOT NULL,
	job_key TEXT NOT NULL,
	element BIGINT NOT NULL,
	task_group TEXT NOT NULL,
	task_index BIGINT NOT NULL,
	try_number BIGINT NOT NULL,
	node TEXT NOT NULL,
	state TEXT NOT NULL,
	assigned_at DOUBLE NOT NULL,
	started_at DOUBLE,
	ended_at DOUBLE,
	exit_code BIGINT,
	signal BIGINT,
	end_reason TEXT,
	concluded BIGINT NOT NULL,
	body BLOB NOT NULL,
	PRIMARY KEY (id)
);
CREATE TABLE drift (
	"key" TEXT NOT NULL,
	kind TEXT NOT NULL,
	subject TEXT NOT NULL,
	severity TEXT NOT NULL,
	body BLOB NOT NULL,
	PRIMARY KEY ("key")
);
CREATE TABLE events (
	sequence BIGINT NOT NULL,
	at DOUBLE NOT NULL,
	kind TEXT NOT NULL,
	message TEXT NOT NULL,
	job TEXT NOT NULL,
	node TEXT NOT NULL,
	attempt TEXT NOT NULL,
	PRIMARY KEY (sequence)
);
CREATE TABLE jobs (
	"key" TEXT NOT NULL,
	name TEXT NOT NULL,
	run BIGINT NOT NULL,
	state TEXT NOT NULL,
	queue TEXT NOT NULL,
	owner TEXT NOT NULL,
	priority BIGINT NOT NULL,
	submitted_at DOUBLE NOT NULL,
	position BIGINT NOT NULL,
	labels TEXT NOT NULL,
	newest BIGINT NOT NULL,
	body BLOB NOT NULL,
	PRIMARY KEY ("key")
);
CREATE TABLE journal (
	epoch BIGINT NOT NULL,
	cycle BIGINT NOT NULL,
	at DOUBLE NOT NULL,
	size BIGINT NOT NULL,
	body BLOB NOT NULL,
	PRIMARY KEY (epoch, cycle)
);
CREATE TABLE leader (
	id BIGINT NOT NULL,
	holder TEXT NOT NULL,
	epoch BIGINT NOT NULL,
	renewed_at DOUBLE NOT NULL,
	cycle BIGINT NOT NULL,
	next_order BIGINT NOT NULL,
	last_event BIGINT NOT NULL,
	PRIMARY KEY (id)
);
INSERT INTO "leader" VALUES(1,'',0,0.0,0,1,0);
CREATE TABLE nodes (
	name TEXT NOT NULL,
	pool TEXT NOT NULL,
	state TEXT NOT NULL,
	body BLOB NOT NULL,
	PRIMARY KEY (name)
);
CREATE TABLE notes (
	job_key TEXT NOT NULL,
	element BIGINT NOT NULL,
	body BLOB NOT NULL,
	PRIMARY KEY (job_key, element)
)
 WITHOUT ROWID
;
CREATE TABLE overrides (
	position BIGINT NOT NULL,
	body BLOB NOT NULL,
	PRIMARY KEY (position)
);
CREATE TABLE reasons (
	"key" TEXT NOT NULL,
	body BLOB NOT NULL,
	PRIMARY KEY ("key")
);
CREATE TABLE runs (
	"key" TEXT NOT NULL,
	PRIMARY KEY ("key")
)
 WITHOUT ROWID
;
CREATE TABLE schema_version (
	version BIGINT NOT NULL,
	PRIMARY KEY (version)
);
INSERT INTO "schema_version" VALUES(1);
CREATE TABLE snapshots (
	epoch BIGINT NOT NULL,
	cycle BIGINT NOT NULL,
	body BLOB NOT NULL,
	PRIMARY KEY (epoch, cycle)
);
CREATE TABLE views (
	name TEXT NOT NULL,
	body BLOB NOT NULL,
	PRIMARY KEY (name)
);
CREATE INDEX jobs_by_name ON jobs (name, run);
CREATE INDEX jobs_by_position ON jobs (position, name) WHERE newest = 1;
CREATE INDEX attempts_alive ON attempts (node) WHERE state != 'Ended';
CREATE INDEX attempts_open ON attempts (assigned_at) WHERE concluded = 0;
CREATE INDEX attempts_by_job ON attempts (job, run, element);
CREATE INDEX events_by_job ON events (job) WHERE job != '';
CREATE INDEX events_by_time ON events (at);
CREATE INDEX events_by_node ON events (node) WHERE node != '';
COMMIT;
