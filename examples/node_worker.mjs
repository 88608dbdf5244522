// A worker in another language: claims jobs over HTTP, beats while it runs them, settles them. No packages needed.
//
//   dibs serve shop.jobs:app --allow-unknown-tasks
//   DIBS_SERVER=http://127.0.0.1:8080 DIBS_TOKEN=... node node_worker.mjs

const server = process.env.DIBS_SERVER ?? "http://127.0.0.1:8080";
const headers = { "Content-Type": "application/json" };
if (process.env.DIBS_TOKEN) headers.Authorization = `Bearer ${process.env.DIBS_TOKEN}`;
const sleep = (seconds) => new Promise((wait) => setTimeout(wait, seconds * 1000));

const tasks = {
  async greet({ name }, report) {
    await report({ greeting: name });
    return `hello ${name}`;
  },
};

async function post(path, body = {}) {
  const answer = await fetch(server + path, { method: "POST", headers, body: JSON.stringify(body) });
  const said = await answer.json();
  if (!answer.ok) throw Object.assign(new Error(said.detail), { code: said.code, refused: answer.status < 500 });
  return said;
}

// Until it is answered: a job that is not settled would stay ours for as long as we beat. Sent twice, it counts once.
async function settle(path, body) {
  const error = await post(path, body).catch((error) => error);
  if (!(error instanceof Error)) return;
  console.error(error.message);
  if (error.refused) return; // the lease is lost: another has the job, and nothing that we did was written
  await sleep(1);
  await settle(path, body);
}

async function run(job, beatSeconds) {
  const own = `/api/claims/${job.lease}`;
  if (!Object.hasOwn(tasks, job.type)) return unknown.add(job.type), settle(`${own}/release`);
  const beats = setInterval(() => post(`${own}/heartbeat`).catch((error) => console.error(error.message)), beatSeconds * 1000);
  const report = (progress) => post(`${own}/progress`, { progress }).catch((error) => console.error(error.message));
  const done = (result) => settle(`${own}/complete`, { result });
  await tasks[job.type](job.payload, report).then(done, (error) => settle(`${own}/fail`, { error: String(error) }));
  clearInterval(beats);
}

let known = {}, stopping = false; // who we are, and the last claim that we heard of
const unknown = new Set(); // types that are for others
process.on("SIGTERM", () => (stopping = true));
while (!stopping) {
  try {
    const claim = { queues: ["node"], wait: 5, name: "node", unknown: [...unknown], ...known };
    const { worker, received, beatSeconds, jobs } = await post("/api/claims", claim);
    known = { worker, received };
    await Promise.all(jobs.map((job) => run(job, beatSeconds)));
  } catch (error) {
    if (error.code === "worker_gone") known = {};
    console.error(error.message);
    await sleep(1);
  }
}
