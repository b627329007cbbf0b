// Keeps the dashboard fresh: asks for its parts every few seconds and replaces those that changed. The page is complete
// without this script, which does not know what the parts contain.
"use strict";

(() => {
    const page = document.querySelector("[data-outbox-url]");
    if (!page) {
        return;
    }
    const foot = page.querySelector("[data-outbox-foot]");
    const said = foot.querySelector("[data-outbox-said]");
    const button = foot.querySelector("button");
    const everyMs = Number(page.dataset.outboxEvery) * 1000;
    const SLOWEST_MS = 60000;
    let timer = 0;
    let failures = 0;
    let isPaused = false;
    let isAsking = false;
    let last = new Date();

    // One request at a time: the answers to two could arrive in any order.
    const later = (ms) => {
        clearTimeout(timer);
        if (!isPaused && !document.hidden) {
            timer = setTimeout(ask, ms);
        }
    };

    const say = (text, isLate) => {
        said.textContent = text;
        said.classList.toggle("late", isLate);
    };

    const replace = (part, fresh) => {
        const open = new Set([...part.querySelectorAll("details[open]")].map((found) => found.id));
        const scrolled = [...part.querySelectorAll("[id]")]
            .filter((found) => found.scrollTop)
            .map((found) => [found.id, found.scrollTop]);
        const focused = part.contains(document.activeElement) ? document.activeElement.closest("[id]") : null;
        for (const details of fresh.querySelectorAll("details[id]")) {
            details.open = open.has(details.id);
        }
        part.replaceChildren(...fresh.childNodes);
        for (const [id, top] of scrolled) {
            const found = document.getElementById(id);
            if (found) {
                found.scrollTop = top;
            }
        }
        if (focused) {
            const again = document.getElementById(focused.id);
            (again && again.matches("details") ? again.querySelector("summary") : again)?.focus({preventScroll: true});
        }
    };

    const show = (text) => {
        const fresh = new DOMParser().parseFromString(text, "text/html");
        const parts = [...fresh.querySelectorAll("[data-outbox-part]")];
        if (!parts.length) {
            throw new Error("no parts");
        }
        for (const found of parts) {
            const part = page.querySelector(`[data-outbox-part="${found.dataset.outboxPart}"]`);
            // Compared with the last answer: details that the reader has opened are no change.
            if (part && part.outboxText !== found.innerHTML) {
                const text = found.innerHTML;
                replace(part, found);
                part.outboxText = text;
            }
        }
    };

    async function ask() {
        if (isAsking) {
            return;
        }
        isAsking = true;
        try {
            const answer = await fetch(page.dataset.outboxUrl, {
                credentials: "same-origin",
                headers: {"X-Requested-With": "XMLHttpRequest"},
                redirect: "manual",
                signal: AbortSignal.timeout(Math.max(10000, 2 * everyMs)),
            });
            if (answer.type === "opaqueredirect" || answer.status === 401 || answer.status === 403) {
                isPaused = true;
                button.hidden = true;
                say("You are signed out, or you may no longer see this page. Load it again.", true);
                return;
            }
            if (!answer.ok) {
                throw new Error(String(answer.status));
            }
            const text = await answer.text();
            if (isPaused) {
                return;
            }
            show(text);
            failures = 0;
            last = new Date();
            page.dataset.outboxUpdates = String(Number(page.dataset.outboxUpdates || 0) + 1);
            say(`Updated at ${last.toLocaleTimeString()}. The page updates every ${everyMs / 1000} s.`, false);
        } catch (error) {
            failures += 1;
            if (isPaused) {
                return;
            }
            say(`Not updated since ${last.toLocaleTimeString()}: the server does not answer. The page tries again.`, true);
        } finally {
            isAsking = false;
            later(Math.min(SLOWEST_MS, everyMs * 2 ** failures));
        }
    }

    button.hidden = false;
    button.addEventListener("click", () => {
        isPaused = !isPaused;
        button.textContent = isPaused ? "Resume updating" : "Stop updating";
        if (isPaused) {
            clearTimeout(timer);
            say(`Updates stopped at ${last.toLocaleTimeString()}.`, false);
        } else {
            ask();
        }
    });
    document.addEventListener("visibilitychange", () => {
        if (document.hidden) {
            clearTimeout(timer);
        } else if (!isPaused) {
            ask();
        }
    });
    later(everyMs);
})();
