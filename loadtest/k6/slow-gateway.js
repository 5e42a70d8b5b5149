// @ts-check
// Question (S1): the gateway takes 5 s. Are 50 buyers at once, and 100 more later, all paid in 5 s and a bit, and is no
// database connection held meanwhile?
//
// paymentd: deploy/profiles/default.env with PAYMENTD_RATE_LIMIT=0 PAYMENTD_BULKHEAD=0 (S1), or as it is (S1b: then
//           WAIT=4s, because a burst above the rate waits its turn). PAYMENTD_DB_MAX_CONNS=10 is the default.
// Run:      k6 run slow-gateway.js                     DURATION=90s between the volleys, WAIT=0s, GATEWAY=5s
// Read:     paid is 150. Systems that call the gateway inside a transaction, or write
//           notices on a second connection, got 20 and 27 of 150.
import { check, sleep } from 'k6';
import { Counter } from 'k6/metrics';

import { always, begin, end, patience, verify } from './lib/money.js';
import { confirm, metrics, newOrder, sum } from './lib/paymentd.js';
import { after, seconds } from './lib/settings.js';
import { count } from './lib/simulator.js';

const gateway = seconds('GATEWAY', '5s');
const pause = seconds('DURATION', '90s');
const wait = seconds('WAIT', '0s');
const paid = new Counter('paid');

/**
 * @param {number} vus
 * @param {number} start seconds
 * @returns {import('k6/options').Scenario}
 */
const volley = (vus, start) => ({ executor: 'per-vu-iterations', vus, iterations: 1, startTime: after(start), maxDuration: '60s' });

/**
 * @param {number} start seconds, of the volley
 * @param {number} vus
 * @returns {import('k6/options').Scenario}
 */
const lookAt = (start, vus) => ({
  executor: 'per-vu-iterations', vus: 1, iterations: 1, exec: 'look', startTime: after(start), env: { WAITING: String(vus) },
});

/** @type {import('k6/options').Options} */
export const options = {
  ...patience,
  scenarios: {
    first: volley(50, 0),
    look_first: lookAt(0, 50),
    second: volley(100, pause),
    look_second: lookAt(pause, 100),
  },
  thresholds: {
    ...always,
    http_req_failed: ['rate==0'],
    paid: ['count==150'],
    // The gateway's own delay dominates; how near the slowest come to it depends on the machine. Theirs: within 6 s.
    payment_latency: [`med<${(gateway + wait + 1) * 1000}`, `max<${(2 * gateway + wait) * 1000}`],
  },
};

export function setup() {
  return begin([{ op: 'confirm', latency: after(gateway) }]);
}

/** @param {import('./lib/money.js').Run} run */
export default function (run) {
  const order = newOrder(run.run);
  const a = confirm(order);
  check(a, { '200 PAID': (x) => x.status === 200 && x.word === 'PAID' });
  paid.add(a.status === 200 ? 1 : 0);
  verify(order, a);
}

// While all wait for the gateway no connection is in use.
export function look() {
  const all = Number(__ENV.WAITING);
  const until = Date.now() + (gateway + wait) * 1000;
  let most = 0;
  let held = -1;
  while (Date.now() < until && !(most === all && held === 0)) {
    sleep(0.2);
    const running = count('confirm').running;
    if (running >= most && running > 0) {
      most = running;
      held = sum(metrics(), 'paymentd_db_connections', { pool: 'request', state: 'in_use' });
    }
  }
  console.log(`${most} of ${all} waited at the gateway, ${held} database connections in use`);
  check(most, { 'all wait at the gateway at once': (n) => n === all });
  check(held, { 'no connection is in use meanwhile': (n) => n === 0 });
}

/** @param {import('./lib/money.js').Run} run */
export function teardown(run) {
  end(run);
}
