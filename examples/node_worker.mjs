// A worker in another language: claims jobs over HTTP, beats while it runs them, settles them. No packages needed.
//
//   dibs serve shop.jobs:app --allow-unknown-tasks
//   DIBS_SERVER=http://127.0.0.1:8080 DIBS_TOKEN=... node node_worker.mjs

const server = process.env.DIBS_SERVER ?? "http://127.0.0.1:8080";
const headers = { "Content-Type": "application/json" };
if (process.env.DIBS_TOKEN) headers.Authorization = `Bearer ${process.env.DIBS_TOKEN}`;

const tasks = {
  async greet({ name }, report) {
    await report({ greeting: name });
    return `hello ${name}`;
  },
};

async function post(path, body = {}) {
  const answer = await fetch(server + path, { method: "POST", headers, body: JSON.stringify(body) });
  const said = await answer.json();
  if (!answer.ok) throw Object.assign(new Error(said.detail), { code: said.code });
  return said;
}

async function run(job, beatSeconds) {
  const own = `/api/claims/${job.lease}`;
  const beats = setInterval(() => post(`${own}/heartbeat`).catch((error) => console.error(error.message)), beatSeconds * 1000);
  try {
    if (!(job.type in tasks)) return await post(`${own}/release`);
    const result = await tasks[job.type](job.payload, (progress) => post(`${own}/progress`, { progress }));
    await post(`${own}/complete`, { result });
  } catch (error) {
    if (error.code === "lease_lost") return; // another has it: nothing that we did was written
    await post(`${own}/fail`, { error: String(error) }).catch((late) => console.error(late.message));
  } finally {
    clearInterval(beats);
  }
}

let known = {}; // who we are, and the last claim that we heard of
let stopping = false;
process.on("SIGTERM", () => (stopping = true));

while (!stopping) {
  try {
    const { worker, received, beatSeconds, jobs } = await post("/api/claims", { queues: ["node"], wait: 5, name: "node", ...known });
    known = { worker, received };
    await Promise.all(jobs.map((job) => run(job, beatSeconds)));
  } catch (error) {
    if (error.code === "worker_gone") known = {};
    console.error(error.message);
    await new Promise((wait) => setTimeout(wait, 1000));
  }
}
